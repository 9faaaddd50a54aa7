"""Phantom hospitals: synthetic fundus photographs and OCT scans, marked as such, in memory or on disk."""
