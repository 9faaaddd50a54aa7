"""How sure a model is: evidence, the threshold theta of a site, and estimators."""
