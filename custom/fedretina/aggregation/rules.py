"""How the server weighs the sites' updates: uniform, by images, or UAW by theta."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedretina.parts import Register
from fedretina.settings.aggregation import RuleSettings, SamplesSettings, UawSettings, UniformSettings

Scalars = Mapping[str, Mapping[str, float]]
"""Scalars by site and name."""

rule: Register[Callable[[Scalars, Any], dict[str, float]]] = Register("fedretina.aggregation.rules")
"""Registers the function below it as the rule of some settings."""


@rule(UniformSettings)
def uniform_weights(scalars: Scalars, settings: UniformSettings) -> dict[str, float]:
    """Weigh every site alike: w_i = 1/N."""
    return {site: 1.0 / len(scalars) for site in sorted(scalars)}


@rule(SamplesSettings)
def sample_weights(scalars: Scalars, settings: SamplesSettings) -> dict[str, float]:
    """Weigh by training images: w_i = n_i / sum_j n_j (McMahan et al. 2017)."""
    total = sum(scalars[site]["images"] for site in sorted(scalars))
    return {site: scalars[site]["images"] / total for site in sorted(scalars)}


@rule(UawSettings)
def uaw_weights(scalars: Scalars, settings: UawSettings) -> dict[str, float]:
    """Weigh by uncertainty: w_i = exp(theta_i) / sum_j exp(theta_j) (FedUAA, section 2.2).

    Differs from the official code only where that code breaks: theta is finite here, since a site decides every
    degenerate case itself (`uncertainty.theta`) and the server refuses an update whose theta is not. The
    number of images plays no part, as in the paper. Theta = K/S at its threshold, so with equal evidence a site
    with more grades weighs more.
    """
    sites = sorted(scalars)
    theta = np.array([scalars[site]["theta"] for site in sites]) / settings.temperature  # Theta
    raised = np.exp(theta - np.max(theta))
    return dict(zip(sites, (raised / raised.sum()).tolist(), strict=True))  # w_i


def site_weights(scalars: Scalars, settings: RuleSettings) -> dict[str, float]:
    """Weights of the sites by the chosen rule; they are positive and sum to 1."""
    return rule.of(settings)(scalars, settings)
