"""Rows times seeds over given sites, through the plain loop: what the papers' tables are filled from."""
