"""Seeds that depend on what they are for, so that no draw shifts when another one is added."""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(*parts: int | str) -> int:
    """Hash named parts to a seed in [0, 2**63).

    The same parts give the same seed on every machine and in every process, whatever the order in which
    sites answer; (seed, site, phase, round, purpose) is the usual list.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(*parts: int | str) -> np.random.Generator:
    """A NumPy generator of its own for one purpose; see `derive_seed`."""
    return np.random.default_rng(derive_seed(*parts))
