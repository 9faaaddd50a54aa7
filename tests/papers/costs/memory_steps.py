"""Steps whose memory is known, in a module that is quick to import in a process of its own."""

from __future__ import annotations

import os

import numpy as np

MB = 1_000_000


def hold(megabytes):
    kept = np.ones(megabytes * MB // 8)

    def step():
        return np.sum(np.ones(60 * MB // 8)) + kept[0]  # freed at once, and yet a part of the peak

    return step


def die():
    os._exit(9)
