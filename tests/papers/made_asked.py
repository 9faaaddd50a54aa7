"""Logits of a made model at a made site, with what the truth is."""

from __future__ import annotations

import numpy as np
import torch

from fedretina.seeds import generator
from fedretina_papers.asked import Asked, Outside


def made_asked(seed=1, members=3, classes=4, images=60, val=40, patients=2):
    """Answers that are right more often than not; validation and test alike, some images from outside."""

    def logits(labels, purpose):
        rng = generator("logits", purpose, seed)
        noise = rng.normal(size=(len(labels), members, classes))
        return torch.from_numpy((2 * np.eye(classes)[labels][:, None] + 1.6 * noise).astype(np.float32))

    truth = generator("truth", 0)  # the same for every seed, as test images are
    labels, told = truth.integers(0, classes, images), truth.integers(0, classes, val)
    strange = generator("strange", seed).normal(size=(20, members, classes)).astype(np.float32)
    return Asked(
        logits=logits(labels, "test"),
        labels=labels.astype(np.int64),
        patients=tuple(f"p{at // patients:03}" for at in range(images)),
        val_logits=logits(told, "val"),
        val_labels=told.astype(np.int64),
        referable=(2, 3),
        ungradable=-1,
        outside={
            "unseen": Outside(
                torch.from_numpy(strange), np.arange(20, dtype=np.int64) % 2, ("erm", "rvo"), True, False
            ),
            "site-9": Outside(torch.from_numpy(strange[:7]), np.full(7, -1, dtype=np.int64), (), True, True),
        },
    )
