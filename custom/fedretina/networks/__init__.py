"""What answers: encoders in five stages, personal heads and the network that joins them."""
