"""Figures with support: patients are counted, few of them decide nothing, and rounds are chosen by what has support."""

from __future__ import annotations

import numpy as np
import pytest

from fedretina.evaluation.metrics import auroc, macro_auc
from fedretina.evaluation.model_selection import best_step, candidates, chosen_step
from fedretina.evaluation.support import supported_auc
from fedretina.settings.aggregation import ChoiceSettings


def split(counts: list[int], images_each: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Noisy scores of so many patients of each grade."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), np.array(counts) * images_each)
    patients = [f"p{at // images_each}" for at in range(labels.size)]
    return rng.normal(0, 1, (labels.size, len(counts))) + np.eye(len(counts))[labels], labels, patients


def test_the_mean_leaves_out_what_few_patients_stand_behind_and_counts_patients_not_images():
    scores, labels, patients = split([12, 10, 3], images_each=4)
    found = supported_auc(scores, labels, patients, least=10)
    assert [(one.images, one.patients, one.others, one.supported) for one in found.grades] == [
        (48, 12, 13, True),
        (40, 10, 15, True),
        (12, 3, 22, False),  # 12 images, but of 3 people
    ]
    own = [auroc(scores[:, grade], labels == grade) for grade in range(3)]
    assert [one.value for one in found.grades] == own
    assert found.value == pytest.approx(np.mean(own[:2]))
    assert found.counted == (0, 1)
    # A grade that nearly everybody has is as little supported as one that hardly anybody has.
    assert supported_auc(*split([30, 5]), least=10).value is None
    assert supported_auc(*split([30, 5]), least=5).value == pytest.approx(macro_auc(*split([30, 5])[:2]).value)


def test_one_patient_of_a_rare_grade_moves_the_macro_auc_and_not_the_supported_one():
    scores, labels, patients = split([20, 20, 1])
    last = labels == 2
    worst, best = scores.copy(), scores.copy()
    worst[last, 2], best[last, 2] = -99, 99
    low, high = macro_auc(worst, labels).value, macro_auc(best, labels).value
    assert low is not None
    assert high is not None
    assert high - low > 0.3
    assert supported_auc(worst, labels, patients).value == supported_auc(best, labels, patients).value


def step(**aucs: tuple[float | None, float | None]) -> dict[str, dict[str, dict[str, float]]]:
    names = ("val_auc", "val_auc_supported")
    return {
        "scalars": {
            site: {n: v for n, v in zip(names, two, strict=True) if v is not None} for site, two in aucs.items()
        }
    }


def test_rounds_are_chosen_by_the_supported_mean_and_sites_without_one_have_their_plain_auc_in_it():
    records = [
        {"scalars": {}},
        step(a=(0.90, 0.70), b=(0.60, None)),  # a rare grade is lucky at a
        step(a=(0.70, 0.80), b=(0.60, None)),
        step(a=(0.75, 0.80), b=(0.50, None)),  # and b, whose grades are all rare, still has a voice
    ]
    assert [one.mean for one in candidates(records, range(3), "supported")] == pytest.approx([0.65, 0.70, 0.65])
    assert (best_step(records, range(3), by="supported"), best_step(records, range(3), by="auc")) == (1, 0)
    assert chosen_step(records, range(3), ChoiceSettings()) == 1
    assert chosen_step(records, range(3), ChoiceSettings(by="auc")) == 0
    nobody = [{"scalars": {}}, step(a=(0.5, None)), step(a=(0.8, None))]
    assert chosen_step(nobody, range(2), ChoiceSettings()) == best_step(nobody, range(2)) == 1
