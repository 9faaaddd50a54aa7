"""Which round's model a run ends with: that of the best mean validation AUC over the sites, or the last one.

The AUC that chooses is a site's mean over the grades with support, which no single patient decides; a site whose
validation has none such has its AUC over all grades in the mean. Which of the two a site has depends on its labels
alone, so it is the same in every round, and rounds compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fedretina.settings.aggregation import ChoiceSettings

By = Literal["supported", "auc"]
"""What is compared; see `ChoiceSettings`."""


class Candidate(NamedTuple):
    """A trained step with the validation AUC of the sites that measured it."""

    step: int
    aucs: Mapping[str, float]

    @property
    def mean(self) -> float:
        """Plain mean over the sites, as FedUAA selects; pooling over different criteria would mean nothing."""
        return sum(self.aucs[site] for site in sorted(self.aucs)) / len(self.aucs)


def candidates(records: Sequence[Mapping[str, Any]], training: range, by: By = "auc") -> list[Candidate]:
    """Collect validation figures: step s is measured by the sites on receipt, in step s + 1.

    Args:
        records: Records of the steps that are done, in order.
        training: Numbers of the steps that train.
        by: Which AUC.
    """
    names = ("val_auc_supported", "val_auc") if by == "supported" else ("val_auc",)
    found = []
    for step in training:
        if step + 1 >= len(records):
            break
        sites = records[step + 1]["scalars"]
        sent = {
            site: next((sites[site][name] for name in names if name in sites[site]), None) for site in sorted(sites)
        }
        aucs = {site: value for site, value in sent.items() if value is not None}
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
        return best_step(records, training, choice.window, choice.by)
    done = [step for step in training if step < len(records)]
    return done[-1] if done else None


def best_step(records: Sequence[Mapping[str, Any]], training: range, window: int = 1, by: By = "auc") -> int | None:
    """The step with the highest mean validation AUC; the earliest of equals.

    Means over different sites do not compare, so only steps that the most sites measured stand for choice, and with a
    window only those that have most such steps before them.

    Args:
        records: Records of the steps that are done, in order.
        training: Numbers of the steps that train.
        window: See `ChoiceSettings`.
        by: Likewise.

    Returns:
        The step, or None when no site could measure any.
    """
    listed = candidates(records, training, by)
    if not listed:
        return None
    most = max(len(candidate.aucs) for candidate in listed)
    full = [candidate for candidate in listed if len(candidate.aucs) == most]
    smooth = [(full[at], full[max(0, at + 1 - window) : at + 1]) for at in range(len(full))]
    longest = max(len(behind) for _, behind in smooth)
    ranked = [(sum(c.mean for c in behind) / longest, one.step) for one, behind in smooth if len(behind) == longest]
    return max(ranked, key=lambda pair: (pair[0], -pair[1]))[1]
