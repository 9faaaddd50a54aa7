"""The federation's curve: how many ill patients have how small a chance of disease, for sites with few of their own.

A promise to refer takes a site's own ill patients, and no other site's can stand for them (docs/promise.md). A site
with too few may still ask for a threshold: its own counts, with a prior of a few ill patients whose curve is the other
sites', are drawn towards these the more, the fewer they are. Shrinkage by a few counts from each site is that of arXiv
2606.20115, which shrinks every hospital's threshold and misses its risk at some. So nothing is promised with it here,
and a site with enough patients keeps its own.

Counts alone leave a site, over fixed bins that are merged until each holds nobody or `min_count` patients. A merged bin
stands at its lower end, as if all in it had the smallest chance there: a threshold is then never too high for what the
bins hide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedretina.evaluation.figures import LabelledPredictions
from fedretina.exchange.min_count import merged
from fedretina.settings.scalars import CURVE, CURVE_EDGES, curve_name
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.site import PromiseSettings
from fedretina.uncertainty.promise import chance_of_disease, scores_of_ill
from fedretina.uncertainty.referral import refer

PRIOR = 30.0
"""Ill patients of a site's own that the other sites' curve stands for at most; docs/promise.md measured this one."""
_LEAST_SITES = 2


class Drawn(NamedTuple):
    """A threshold that is drawn towards the other sites'.

    Attributes:
        threshold: An image refers when its chance of referable disease is this or more; None where nothing need be
            added to the other reasons.
        share: How much of it comes from the other sites' patients, in (0, 1].
        passed: The site's own ill patients of validation that pass.
    """

    threshold: float | None
    share: float
    passed: int


def referral_scores(validation: LabelledPredictions, threshold: float, scheme: GradingScheme) -> NDArray[np.float64]:
    """What `scores_of_ill` gives of a validation split, beside doubt and grade; the gate's reasons are not counted on.

    Args:
        validation: Answers and truth.
        threshold: The u at or above which an image is doubtful.
        scheme: The site's grades.
    """
    chance, referred = reasons(validation, threshold, scheme)
    return scores_of_ill(chance, referred, validation.labels, validation.patients, scheme)


def reasons(
    validation: LabelledPredictions, threshold: float, scheme: GradingScheme
) -> tuple[NDArray[np.float64], list[bool]]:
    """Each image's chance of a referable grade, and whether its grade or its doubt refers it."""
    answers = zip(validation.predicted.tolist(), validation.uncertainty.tolist(), strict=True)
    referred = [refer(grade, u, threshold, scheme).refer for grade, u in answers]
    return chance_of_disease(validation.probabilities, scheme), referred


def ill_counts(scores: ArrayLike, min_count: int) -> dict[str, float]:
    """Count a site's ill patients by chance of disease, as they may leave where its policy lets them.

    Args:
        scores: As `scores_of_ill` gives them [P].
        min_count: Fewest patients behind a count, 1 or more; with fewer in all nothing leaves.

    Returns:
        Scalars by name, all in `settings.scalars.CURVE`; a bin of nobody has none.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.size < min_count:
        return {}
    at = np.where(np.isinf(values), len(CURVE_EDGES), np.searchsorted(CURVE_EDGES, values, side="right") - 1)
    found, first = {}, 0
    for last, inside in merged(at, np.arange(values.size), len(CURVE), min_count):
        if inside.any():
            found[curve_name(first)] = float(inside.sum())
        first = last + 1
    return found


def curve_of_others(sites: Mapping[str, Mapping[str, float]], site: str) -> tuple[int, ...]:
    """Add up what the other sites let go; empty where fewer than two did, since one site's would be shown as its own.

    Args:
        sites: What each sent, by `ill_counts`.
        site: Whom the sum is for.

    Returns:
        Counts by bin, as long as `settings.scalars.CURVE`; or none.
    """
    told = [sites[name] for name in sorted(sites) if name != site and sites[name].keys() & CURVE.keys()]
    if len(told) < _LEAST_SITES:
        return ()
    return tuple(round(sum(one.get(name, 0.0) for one in told)) for name in CURVE)


def drawn_threshold(scores: ArrayLike, curve: Sequence[int], asked: PromiseSettings) -> Drawn | None:
    """The largest threshold that the site's own ill patients and the other sites' together let pass as few as asked.

    Of the share that passes below a threshold, the prior is Beta(w f, w (1 - f)): f is the other sites' share, half a
    patient added to those who pass, and w the least of `PRIOR` and their number. With the site's own counts the
    posterior must leave at most 1 - sure for more than `missed`.

    Args:
        scores: As `scores_of_ill` gives them [P]; the site's own.
        curve: As `curve_of_others` gives it.
        asked: How many may pass, and how sure that is to be.

    Returns:
        None where there is no curve, or too few stand behind it: even to refer everybody leaves too much open.
    """
    from scipy.special import betainc

    own = np.sort(np.asarray(scores, dtype=np.float64))
    counts = np.asarray(curve, dtype=np.float64)
    if counts.sum() == 0:
        return None
    places = np.asarray([*CURVE_EDGES, math.inf])
    at = np.unique(np.concatenate([own, places]))
    others, passing = counts.sum(), np.searchsorted(own, at)
    below = np.append(0.0, counts.cumsum())[np.searchsorted(places, at)]
    weight = min(PRIOR, float(others))
    usual = (below + 0.5) / (others + 1)
    a, b = weight * usual + passing, weight * (1 - usual) + own.size - passing
    fits = np.flatnonzero(betainc(a, b, asked.missed) >= asked.sure)
    if not fits.size:
        return None
    found = float(at[fits[-1]])
    passed = int(np.isfinite(own[own < found]).sum())
    return Drawn(None if math.isinf(found) else found, weight / (weight + own.size), passed)
