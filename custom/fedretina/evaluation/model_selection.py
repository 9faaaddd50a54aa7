"""Which round's model a run ends with: that of the best mean validation AUC over the sites, or the last one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedretina.settings.aggregation import ChoiceSettings


class Candidate(NamedTuple):
    """A trained step with the validation AUC of the sites that measured it."""

    step: int
    aucs: Mapping[str, float]

    @property
    def mean(self) -> float:
        """Plain mean over the sites, as FedUAA selects; pooling over different criteria would mean nothing."""
        return sum(self.aucs[site] for site in sorted(self.aucs)) / len(self.aucs)


def candidates(records: Sequence[Mapping[str, Any]], training: range) -> list[Candidate]:
    """Collect validation figures: step s is measured by the sites on receipt, in step s + 1.

    Args:
        records: Records of the steps that are done, in order.
        training: Numbers of the steps that train.
    """
    found = []
    for step in training:
        if step + 1 >= len(records):
            break
        sites = records[step + 1]["scalars"]
        aucs = {site: sites[site]["val_auc"] for site in sorted(sites) if "val_auc" in sites[site]}
        if aucs:
            found.append(Candidate(step, aucs))
    return found


def chosen_step(records: Sequence[Mapping[str, Any]], training: range, choice: ChoiceSettings) -> int | None:
    """The step that a run would end with if it ended now.

    Args:
        records: Records of the steps that are done, in order.
        training: Numbers of the steps that train.
        choice: How it is chosen.

    Returns:
        The step, or None where there is none yet, or no site could measure any.
    """
    if choice.model == "best":
        return best_step(records, training, choice.window)
    done = [step for step in training if step < len(records)]
    return done[-1] if done else None


def best_step(records: Sequence[Mapping[str, Any]], training: range, window: int = 1) -> int | None:
    """The step with the highest mean validation AUC; the earliest of equals.

    Means over different sites do not compare, so only steps that the most sites measured stand for choice, and with a
    window only those that have most such steps before them.

    Args:
        records: Records of the steps that are done, in order.
        training: Numbers of the steps that train.
        window: See `ChoiceSettings`.

    Returns:
        The step, or None when no site could measure any.
    """
    listed = candidates(records, training)
    if not listed:
        return None
    most = max(len(candidate.aucs) for candidate in listed)
    full = [candidate for candidate in listed if len(candidate.aucs) == most]
    smooth = [(full[at], full[max(0, at + 1 - window) : at + 1]) for at in range(len(full))]
    longest = max(len(behind) for _, behind in smooth)
    ranked = [(sum(c.mean for c in behind) / longest, one.step) for one, behind in smooth if len(behind) == longest]
    return max(ranked, key=lambda pair: (pair[0], -pair[1]))[1]
