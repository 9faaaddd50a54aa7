"""Every setting that a file may hold: what it is called, what it may be, and what goes together."""
