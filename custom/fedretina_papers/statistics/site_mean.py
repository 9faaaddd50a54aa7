"""A figure over sites: between the plain mean and the one by size, and at the worst site."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from fedretina.errors import SettingsError

BY_SIZE, PLAIN = math.e, 1.0


class OverSites(NamedTuple):
    """A mean over sites.

    Attributes:
        value: The mean; None where no site has the figure.
        sites: Sites that have it.
        missing: Sites that have it not; they are in no mean.
    """

    value: float | None
    sites: int
    missing: int


class WorstSite(NamedTuple):
    """The site that a figure serves worst."""

    site: str
    value: float


def site_mean(values: Mapping[str, float | None], sizes: Mapping[str, int], eta: float = PLAIN) -> OverSites:
    """Mean of a figure over sites, weighted by size to a degree (FedEE Eq. 12).

    The weight of a site is eta^ln(n) = n^ln(eta): the plain mean at 1, the mean by size at e, between them between. At
    e a site with half of the images decides half of the mean; at 1 a site with 20 images counts as much as one with
    2000. Where a site has no figure (no error to find, say) it is left out and counted; FedEE's code takes 1.0 for it.

    Args:
        values: The figure by site; None where it is undefined.
        sizes: Test images of each site, before any were referred; 1 or more.
        eta: 1 to e.

    Raises:
        SettingsError: eta is out of range, or a site has no size.
    """
    if not PLAIN <= eta <= BY_SIZE:
        raise SettingsError(f"eta is {eta}: use 1 for the plain mean, e (2.718...) for the one by size, or between.")
    if any(sizes.get(site, 0) < 1 for site in values):
        raise SettingsError("a mean over sites needs the number of test images of each, 1 or more.")
    known = {site: value for site, value in values.items() if value is not None}
    weights = {site: sizes[site] ** math.log(eta) for site in sorted(known)}  # eta^ln(n_k)
    total = sum(weights.values())
    mean = sum(weights[site] * known[site] for site in weights) / total if weights else None
    return OverSites(mean, len(known), len(values) - len(known))


def worst_site(values: Mapping[str, float | None], higher: bool = True) -> WorstSite | None:
    """The site where a figure is worst, the first by name of equals; None where no site has it.

    Args:
        values: The figure by site; None where it is undefined.
        higher: Whether more is better.
    """
    known = {site: value for site, value in sorted(values.items()) if value is not None}
    if not known:
        return None
    site = (min if higher else max)(known, key=lambda name: known[name])
    return WorstSite(site, known[site])
