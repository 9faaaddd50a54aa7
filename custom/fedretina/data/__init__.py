"""A site's data: manifest, grading scheme, cached images, random transforms and phantoms."""
