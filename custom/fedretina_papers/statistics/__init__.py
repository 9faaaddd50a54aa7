"""Statistics and measures that the tables need and no hospital does."""
