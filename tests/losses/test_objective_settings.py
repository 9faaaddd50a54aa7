"""The table of objectives: every name builds, and builds the right thing."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from fedretina.losses.cross_entropy import CrossEntropyObjective, FocalObjective
from fedretina.losses.evidential import EvidentialObjective, TweuObjective
from fedretina.losses.objective import Clock, build_objective
from fedretina.settings.objective import ObjectiveSettings, TweuSettings

LOGITS, LABELS = torch.tensor([[3.0, -1.0, 0.5]]), torch.tensor([1])
CLOCK = Clock(1, 4, 0, 1, 0, 1)


def test_every_name_has_its_objective():
    for settings in ObjectiveSettings.choices().values():
        assert build_objective(settings()).evidential in (True, False)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cross_entropy", CrossEntropyObjective),
        ("evidential", EvidentialObjective),
        ("tweu", TweuObjective),
        ("focal", FocalObjective),
    ],
)
def test_every_name_builds_its_objective(name, kind):
    objective = build_objective(ObjectiveSettings.of(name))
    assert isinstance(objective, kind)
    loss = objective.score(LOGITS, LABELS, CLOCK)
    assert loss.ndim == 0
    assert loss.item() > 0


@pytest.mark.parametrize("name", ["evidential", "tweu"])
def test_the_schedule_reaches_both_evidential_objectives(name):
    values = {
        schedule: build_objective(ObjectiveSettings.of({"name": name, "kl_anneal": schedule}))
        .score(LOGITS, LABELS, CLOCK)
        .item()
        for schedule in ("linear_rounds", "official")
    }
    assert values["official"] > values["linear_rounds"]  # 2/5 against 1/3


def test_tau_reaches_tweu():
    values = [build_objective(TweuSettings(tau=tau)).score(LOGITS, LABELS, CLOCK).item() for tau in (0.05, 0.5)]
    assert values[0] > values[1] + 1


def test_default_is_tweu_and_unknown_names_are_refused():
    assert ObjectiveSettings.of({}) == ObjectiveSettings.of("tweu") == TweuSettings()
    for words in ("hinge", {"name": "hinge"}, {"label_smoothing": 0.1}, {"name": None}, {"name": ["tweu"]}, 3, None):
        with pytest.raises(ValidationError):
            ObjectiveSettings.of(words)
