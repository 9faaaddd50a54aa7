"""Which round's model a run ends with: that of the best mean validation AUC over the sites, or the last one.

The AUC that chooses is a site's mean over the grades with support, which no single patient decides; a site whose
validation has none such has its AUC over all grades in the mean. Which of the two a site has depends on its labels
alone, so it is the same in every round, and rounds compare.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

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
        return self.over(self.aucs)

    def over(self, sites: Collection[str]) -> float:
        """The mean over some of the sites that measured it."""
        return sum(self.aucs[site] for site in sorted(sites)) / len(sites)


class _Standing(NamedTuple):
    """A step that stands for choice.

    Attributes:
        behind: Its window: the steps before it over which its figure is averaged, and itself.
        sites: Who measured all of these.
        heard: Who measured it or any step before it, and so has a part of its own for its model.
    """

    behind: Sequence[Candidate]
    sites: frozenset[str]
    heard: frozenset[str]

    def over(self, sites: Collection[str]) -> float:
        """Its figure over some of its sites."""
        return sum(candidate.over(sites) for candidate in self.behind) / len(self.behind)

    def beats(self, chosen: Self) -> bool:
        """Whether it takes the place of an earlier step that was chosen so far; of equals the earlier stays."""
        if len(self.behind) != len(chosen.behind):
            return len(self.behind) > len(chosen.behind)
        more = len(self.sites) > len(chosen.sites)
        if more and not self.sites <= chosen.heard:
            return True
        both = self.sites & chosen.sites
        return more if 2 * len(both) < len(self.heard) else self.over(both) > chosen.over(both)


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

    Means over different sites do not compare, and a site may miss a step. So a step is held against the one that was
    chosen before it over the sites that measured both. Where these are fewer than half of all that measured any, the
    one that more sites measured is taken; and so it is where a site measured it that came after the other, and has no
    part of its own for that model. Only steps with a full window behind them stand, once there are any. Later steps
    have no say in what was chosen before them: a site keeps what belongs to the choice, and no more.

    Args:
        records: Records of the steps that are done, in order.
        training: Numbers of the steps that train.
        window: See `ChoiceSettings`.
        by: Likewise.

    Returns:
        The step, or None when no site could measure any.
    """
    listed = candidates(records, training, by)
    chosen: _Standing | None = None
    heard: frozenset[str] = frozenset()
    for at, candidate in enumerate(listed):
        heard = heard.union(candidate.aucs)
        behind = listed[max(0, at + 1 - window) : at + 1]
        sites = frozenset.intersection(*(frozenset(one.aucs) for one in behind))
        standing = _Standing(behind, sites, heard)
        if sites and (chosen is None or standing.beats(chosen)):
            chosen = standing
    return None if chosen is None else chosen.behind[-1].step
