"""Noise that a site may add to what leaves, and what it costs of the site's privacy budget.

The unit of protection is the whole site: what leaves is as likely, within the budget, whatever images the site had, so
it protects each patient too. That is a far stronger wish than hiding one image: the small epsilons of the literature
are for one image or one patient under noisy training, and would here leave nothing of the model.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedretina.errors import StateError
from fedretina.exchange.payload import Tensors, tensors_digest
from fedretina.settings.site import GaussianNoise, SvtNoise
from fedretina.storage import write_bytes


class Spent(NamedTuple):
    """Budget that releases have cost.

    Attributes:
        rho: Of Gaussian releases, in zero-concentrated differential privacy (Bun and Steinke, TCC 2016).
        epsilon: Of SVT releases, in pure differential privacy.
    """

    rho: float = 0.0
    epsilon: float = 0.0

    def plus(self, other: Spent) -> Spent:
        """Both together: either measure adds up over releases."""
        return Spent(self.rho + other.rho, self.epsilon + other.epsilon)

    def total(self, delta: float) -> float:
        """Epsilon of all releases at a delta: epsilon = rho + 2 sqrt(rho ln(1/delta)), plus the pure part."""
        return self.rho + 2 * math.sqrt(self.rho * math.log(1 / delta)) + self.epsilon


def cost(noise: GaussianNoise | SvtNoise) -> Spent:
    """Budget of one release.

    Two updates of norm at most C differ by at most 2 C, so noise of standard deviation zC costs
    rho = (2C)^2 / (2 z^2 C^2) = 2 / z^2.
    """
    if isinstance(noise, GaussianNoise):
        return Spent(rho=2 / noise.multiplier**2)
    return Spent(epsilon=noise.epsilon + noise.epsilon_release)


def spent(lines: Iterable[Mapping[str, Any]]) -> Spent:
    """Budget that the releases of a site's ledgers have cost; a release that was sent twice counts once."""
    seen: dict[str, Spent] = {}
    for line in lines:
        found = line.get("privacy")
        if found:
            seen[str(line["digest"])] = Spent(float(found.get("rho", 0)), float(found.get("epsilon", 0)))
    total = Spent()
    for release in seen.values():
        total = total.plus(release)
    return total


def noise_source(key: bytes, update: Tensors, noise: GaussianNoise | SvtNoise) -> np.random.Generator:
    """A source of noise that nobody without the site's key can repeat.

    The same update gets the same noise, so that an order that is sent again gives nothing new away.
    """
    text = json.dumps(noise.model_dump(), sort_keys=True) + tensors_digest(update)
    return np.random.Generator(np.random.PCG64(int.from_bytes(hmac.digest(key, text.encode(), hashlib.sha256), "big")))


def gaussian(update: Tensors, noise: GaussianNoise, source: np.random.Generator) -> dict[str, torch.Tensor]:
    """Scale an update to the norm `clip` if it is longer, and add the noise; in float64, then back to its type."""
    norm = math.sqrt(sum(float(update[key].double().square().sum()) for key in sorted(update)))
    scale = min(1.0, noise.clip / norm) if norm > 0 else 1.0
    found = {}
    for key in sorted(update):
        drawn = torch.from_numpy(source.normal(0.0, noise.multiplier * noise.clip, tuple(update[key].shape)))
        found[key] = (update[key].double() * scale + drawn).to(update[key].dtype)
    return found


def noise_key(path: Path) -> bytes:
    """The site's secret for its noise, made when there is none.

    Raises:
        StateError: The file cannot be read or written.
    """
    try:
        if not path.exists():
            write_bytes(path, secrets.token_bytes(32), mode=0o600)
        key = path.read_bytes()
    except (OSError, StateError) as error:
        raise StateError(f"{path} cannot be read or written ({error}): nothing leaves without noise.") from error
    if len(key) != 32:
        raise StateError(f"{path} is damaged: restore it from a backup, or remove it for a new one.")
    return key
