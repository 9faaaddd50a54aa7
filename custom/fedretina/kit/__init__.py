"""Startup kits: what a hardened one holds, how it becomes one, how that is checked. Knows FLARE's files alone."""
