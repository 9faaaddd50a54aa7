"""One network for what does not depend on images: a whole ResNet-50 that travels, 25.6 million numbers."""

from __future__ import annotations

from typing import Any

GRADES = 1000
"""As many outputs as ImageNet's classifier has, so that the size is the well-known one."""


def experiment_words(rounds: int, encoder: str = "resnet50") -> dict[str, Any]:
    """Words of an experiment whose shared part is all of a network, of ResNet-50 102 MB in float32.

    The head travels and so does all of BatchNorm but its counters: the personal part is as small as it can be.

    Args:
        rounds: Federated rounds.
        encoder: The network.
    """
    return {
        "name": "benchmark",
        "row": "feduaa",
        "grades": GRADES,
        "phases": [{"name": "train", "rounds": rounds}],
        "network": {"encoder": encoder, "head": {"layout": "linear"}},
        "exchange": {"personal": "nothing", "batchnorm": "shared_all"},
        "images": {"image_size": 32},
        "training": {"batch_size": 16, "threads": 1, "device": "cpu"},
    }
