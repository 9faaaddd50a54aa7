"""Noise that a site may add to what leaves, and what it costs of the site's privacy budget.

The unit of protection is the whole site, and of sums over features one patient. Of the whole site: what leaves is as
likely, within the budget, whatever images the site had, so it protects each patient too. That is a far stronger wish
than hiding one image: the small epsilons of the literature are for one image or one patient under noisy training, and
would here leave nothing of the model.
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

from fedretina.analytic.sums import Sums
from fedretina.errors import StateError
from fedretina.exchange.payload import Tensors, tensors_digest
from fedretina.settings.policy import GaussianNoise, SumsNoise, SvtNoise
from fedretina.storage import write_bytes

NOISE_KEY = "noise.key"
"""File of a site's secret for its noise, beside its runs."""


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


def cost(noise: GaussianNoise | SvtNoise | SumsNoise) -> Spent:
    """Budget of one release.

    Two updates of norm at most C differ by at most 2 C, so noise of standard deviation zC costs
    rho = (2C)^2 / (2 z^2 C^2) = 2 / z^2. Sums with and without a patient differ by at most S, and noise of zS costs
    rho = 1 / (2 z^2). What both cost adds up: what hides a site's images hides each of its patients.
    """
    if isinstance(noise, SumsNoise):
        return Spent(rho=1 / (2 * noise.multiplier**2))
    if isinstance(noise, GaussianNoise):
        return Spent(rho=2 / noise.multiplier**2)
    return Spent(epsilon=noise.epsilon + noise.epsilon_release)


def spent(lines: Iterable[Mapping[str, Any]]) -> Spent:
    """Budget that the releases of a site's ledgers have cost; a release that was sent twice counts once.

    Where it left encrypted, the line's `release` tells it: its bytes, and so its digest, are others each time.
    """
    seen: dict[str, Spent] = {}
    for line in lines:
        found = line.get("privacy")
        if found:
            seen[str(line.get("release") or line["digest"])] = Spent(
                float(found.get("rho", 0)), float(found.get("epsilon", 0))
            )
    total = Spent()
    for release in seen.values():
        total = total.plus(release)
    return total


def noise_source(key: bytes, update: Tensors, noise: GaussianNoise | SvtNoise | SumsNoise) -> np.random.Generator:
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


def sums_sensitivity(length: float) -> float:
    """The most that one patient changes sums by, in the length of all their numbers together.

    A patient's images weigh 1 together. So what the patient adds is a mean of what single images add, and no longer
    than the longest of these. An image of features phi, |phi| <= r with the constant, and shares y, |y| <= 1, adds
    y to the counts, y phi^T to the first moments, |y| |phi| <= r, and the upper triangle of phi phi^T, by class its
    products with y, |phi|^2 <= r^2: together at most sqrt(1 + r^2 + r^4).

    Args:
        length: r.
    """
    return math.sqrt(1 + length**2 + length**4)


def noised_sums(sums: Sums, noise: SumsNoise, length: float, key: bytes) -> Sums:
    """Sums with normal noise on each of their numbers, made into sums again that some images could have.

    Those of a patient less are as likely, within the budget. The moments of noise alone are not positive: what is
    missing is added to the diagonal, which a ridge regression takes as more strength (as AdaSSP does, Wang 2018), and
    a class of less than one image then has none. Neither looks at an image, so neither costs anything.

    Args:
        sums: Of a site's images, each patient's weighing 1 together.
        noise: The site's noise.
        length: Longest feature vector that went into them, with its constant.
        key: The site's secret.
    """
    plain = sums.packed()
    source = noise_source(key, plain, noise)
    spread = noise.multiplier * sums_sensitivity(length)
    drawn = {
        name: plain[name] + torch.from_numpy(source.normal(0.0, spread, tuple(plain[name].shape)))
        for name in sorted(plain)
    }
    there = drawn["counts"] >= 1
    counts = drawn["counts"].where(there, torch.zeros_like(drawn["counts"]))
    first = drawn["first"] * there.unsqueeze(1)
    found = Sums.unpacked({"counts": counts, "first": first, "second": drawn["second"]})
    lifted = []
    for at, second in enumerate(found.second):
        mine = there & (torch.arange(len(there)) == at) if found.by_class else there
        within = second - first[mine].T @ (first[mine] / counts[mine].unsqueeze(1))
        least = float(torch.linalg.eigvalsh(within)[0])
        lifted.append(second + max(0.0, -least * (1 + 1e-6)) * torch.eye(len(second), dtype=torch.float64))
    return Sums(found.counts, found.first, torch.stack(lifted))


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
