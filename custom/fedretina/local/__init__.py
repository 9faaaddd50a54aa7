"""The site's half: training, validation, and what a hospital keeps."""
