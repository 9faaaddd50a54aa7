"""The studies: each module registers its own, and no list elsewhere holds them."""
