"""Training without labels by contrast: MoCo v2 with its queue, MoCo v3, SimCLR, and the site half of a round."""
