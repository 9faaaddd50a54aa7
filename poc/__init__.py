"""The rehearsal: a server, its sites and an admin on one machine, with startup kits and mutual TLS."""
