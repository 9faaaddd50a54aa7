"""The server's half: which updates are admitted, how they are mixed, what is kept."""
