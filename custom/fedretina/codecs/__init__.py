"""How a model's numbers travel in fewer bits, and what makes up for what is lost."""
