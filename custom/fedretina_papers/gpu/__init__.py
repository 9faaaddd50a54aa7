"""What a card is used for: speed of input, share of its arithmetic, what settings cost, several sites on one card."""
