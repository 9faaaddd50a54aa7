"""The answers of phantom sites, as only the sites have them."""

from __future__ import annotations

import numpy as np

from fedretina.exchange.min_count import encode


class Raw:
    """The answers of one site, as only the site has them."""

    def __init__(self, seed: int, count: int, classes: int = 5, eyes: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, classes, count)
        self.probabilities = rng.dirichlet(np.full(classes, 0.6), count) * 0.6 + 0.4 * np.eye(classes)[self.labels]
        self.answer = self.probabilities.argmax(1)
        self.wrong = self.answer != self.labels
        self.uncertainty = np.clip(rng.beta(2, 3, count) + 0.1 * self.wrong, 0, 1)
        self.patients = [f"p{number // eyes}" for number in range(count)]

    def sent(self, min_count: int = 5) -> dict[str, float]:
        return encode(self.probabilities, self.labels, self.uncertainty, self.patients, min_count)


SITES = [Raw(1, 300), Raw(2, 47, 4), Raw(3, 160, 6, eyes=2), Raw(4, 12)]
