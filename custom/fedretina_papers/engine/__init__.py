"""One engine for every study's tables: records to a frame, columns as specifications, pages of prose with tables."""
