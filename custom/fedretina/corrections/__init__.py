"""The correction axis: how drift between sites is held back. Site half and server half of each in one file."""
