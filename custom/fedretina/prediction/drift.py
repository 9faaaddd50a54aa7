"""Are these the patients that the model was tested on? What in a whole list speaks for another camera or population.

The gate looks at one photograph at a time, and another camera's may pass it one by one. Here the list is counted as a
whole and held against the site's own test patients: how many are referred, how many the gate stops, how far the
photographs lie from the site's own on average. It can tell that something differs, not what; and a list that is too
short tells nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from fedretina.prediction.worklist import Patient, gate_stopped

LEAST = 10
"""Patients below which a list tells nothing."""
SURE = 0.99
"""Share of lists of the site's own patients in which a count lies within what is foretold."""
FAR = 1.0
"""Steps that half of the patients must be shifted by; one in six of the site's own images lies beyond it."""

_NOT_COUNTED = ("another kind of image", "unlike this site's photographs", "unusual for this site")
Shift = Literal["features", "appearance", "brighter", "darker"]


class Foretold(NamedTuple):
    """A count of patients against what the test patients foretell.

    Attributes:
        k: Patients counted in the list.
        n: Of how many.
        low: Fewest that are foretold, of `n`.
        high: Most.
    """

    k: int
    n: int
    low: int
    high: int

    @property
    def outside(self) -> bool:
        """Whether the count is not among those foretold."""
        return not self.low <= self.k <= self.high


class Drift(NamedTuple):
    """What a list tells of where it comes from.

    Attributes:
        referred: Patients referred by what the model answers (grade, doubt, chance of disease), of those all of whose
            photographs were answered; None where the list is too short or the test was not counted. So the others.
        stopped: Patients with a photograph that the gate stops; more than foretold speaks for another camera.
        odd: Patients with one that it stops or calls unusual.
        shifts: In what half of the patients or more lie beyond what five in six of the site's own images do.
        patients: In the list.
    """

    referred: Foretold | None
    stopped: Foretold | None
    odd: Foretold | None
    shifts: tuple[Shift, ...]
    patients: int

    @property
    def found(self) -> bool:
        """Whether anything speaks for another camera or population."""
        more = [one for one in (self.stopped, self.odd) if one is not None and one.k > one.high]
        return bool(more or self.shifts or (self.referred is not None and self.referred.outside))

    @property
    def looked(self) -> bool:
        """Whether anything could be compared."""
        return any(one is not None for one in (self.referred, self.stopped, self.odd))


def drift(card: Mapping[str, Any], patients: Sequence[Patient]) -> Drift:
    """Hold a list against the site's own test patients.

    Args:
        card: Of the model that answered.
        patients: The work list.
    """
    everyone = len(patients)
    if everyone < LEAST:
        return Drift(None, None, None, (), everyone)
    answered = [one for one in patients if all(photograph.row.grade is not None for photograph in one.photographs)]
    # The rule alone, as the test counted it; the gate is counted by itself.
    by_rule = sum(any(why not in _NOT_COUNTED for why in one.referral.reasons) for one in answered)
    test = card["referral"]["test"] or {}
    load = test.get("answered_load") or test.get("load") or {}  # older cards have that of all patients alone
    tested = _tested(card)
    stopped = sum(any(gate_stopped(photograph.row) for photograph in one.photographs) for one in patients)
    odd = sum(
        any(
            gate_stopped(photograph.row) or "unusual for this site" in photograph.row.referral.reasons
            for photograph in one.photographs
        )
        for one in patients
    )
    return Drift(
        referred=_foretold(by_rule, len(answered), load.get("k"), load.get("n")),
        stopped=_foretold(stopped, everyone, tested.get("stopped"), tested.get("all")),
        odd=_foretold(odd, everyone, tested.get("odd"), tested.get("all")),
        shifts=_shifts(patients),
        patients=everyone,
    )


def foretold(k: int, n: int, of: int) -> tuple[int, int]:
    """Fewest and most of `of` new patients to expect where `k` of `n` were counted.

    The central interval of the beta-binomial distribution that Jeffreys' prior gives: it holds what the test patients
    leave open as well as chance in the new ones, so 3 of 4 at test foretell nearly anything.

    Args:
        k: Counted at test.
        n: Of how many patients, 1 or more.
        of: New patients.
    """
    from scipy.special import betaln, gammaln

    counts = np.arange(of + 1)
    a, b = k + 0.5, n - k + 0.5
    ways = gammaln(of + 1) - gammaln(counts + 1) - gammaln(of - counts + 1)
    chances = np.exp(ways + betaln(counts + a, of - counts + b) - betaln(a, b))
    below = np.cumsum(chances)
    tail = (1 - SURE) / 2
    low = int(np.argmax(below > tail))
    high = int(np.argmax(below >= 1 - tail)) if below[-1] >= 1 - tail else of
    return low, high


def _tested(card: Mapping[str, Any]) -> Mapping[str, int]:
    """What the gate did with the test patients; empty where that was not counted over all of their photographs."""
    look = card.get("look") or {}
    own = look.get("own") or {}
    if "patients" in look or "patients" not in own:
        return look.get("patients") or {}
    # A card from before left out what its site calls ungradable, which a list does not.
    whole = card["scheme"]["ungradable"] is None
    return {"all": own["patients"], "stopped": own["patients_stopped"], "odd": own["patients_odd"]} if whole else {}


def _foretold(k: int, n: int, seen: int | None, tested: int | None) -> Foretold | None:
    if n < LEAST or seen is None or not tested:
        return None
    return Foretold(k, n, *foretold(int(seen), int(tested), n))


def _shifts(patients: Sequence[Patient]) -> tuple[Shift, ...]:
    """The median over patients, each by the mean of the photographs: two eyes of a person are alike."""

    def middle(name: str) -> float:
        means = []
        for patient in patients:
            steps = [photograph.row.steps.get(name, math.nan) for photograph in patient.photographs]
            known = [step for step in steps if math.isfinite(step)]
            if known:
                means.append(statistics.fmean(known))
        return statistics.median(means) if len(means) >= LEAST else 0.0

    held: dict[Shift, bool] = {
        "features": middle("features") > FAR,
        "appearance": middle("appearance") > FAR,
        "brighter": middle("bright") > FAR,
        "darker": middle("bright") < -FAR,
    }
    return tuple(name for name, holds in held.items() if holds)
