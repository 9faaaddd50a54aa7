"""Models that leave: a site's model with its gate, its temperature and its referral in the formats that others run."""
