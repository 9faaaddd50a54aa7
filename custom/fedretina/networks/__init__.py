"""What answers: encoders in stages, personal heads and the network that joins them."""
