"""Blocks: studies in which differences can be seen, with the controls that a reader asks for first."""
