"""Rows and seeds over given sites: what came out, what it is worth, and the paper beside it."""
