"""Shared answers in a site's own grades: a case by hand, conditional probability by counting, unfit covers."""

from __future__ import annotations

import numpy as np
import pytest

from fedretina.errors import SettingsError, TrainingError
from fedretina.evaluation.site_space import in_site_space, outside

SHARED = ("CNV", "DME", "DRUSEN", "NORMAL")
AMD_DME_NORMAL = ((0, 2), (1,), (3,))
NORMAL_AMD = ((3,), (0, 2))


def test_members_are_summed_and_the_rest_is_divided_out():
    row = [[0.3, 0.2, 0.1, 0.4]]
    assert in_site_space(row, AMD_DME_NORMAL) == pytest.approx(np.array([[0.4, 0.2, 0.4]]))
    assert in_site_space(row, NORMAL_AMD) == pytest.approx(np.array([[0.5, 0.5]]))


def test_it_is_the_chance_among_the_covered_classes():
    rng = np.random.default_rng(0)
    row = rng.dirichlet(np.ones(4))
    drawn = rng.choice(4, 200_000, p=row)
    there = drawn[drawn != 1]
    counted = [np.mean(there == 3), np.mean(there != 3)]
    assert in_site_space(row[None], NORMAL_AMD)[0] == pytest.approx(counted, abs=0.01)


def test_a_whole_cover_changes_nothing_but_the_order():
    rows = np.random.default_rng(1).dirichlet(np.ones(4), 7)
    assert in_site_space(rows, ((0,), (1,), (2,), (3,))) == pytest.approx(rows)
    assert in_site_space(rows, ((3,), (2,), (1,), (0,))) == pytest.approx(rows[:, ::-1])


def test_an_answer_wholly_outside_says_nothing():
    row = [[0.0, 1.0, 0.0, 0.0]]
    assert in_site_space(row, NORMAL_AMD).tolist() == [[0.5, 0.5]]
    assert in_site_space(np.empty((0, 4)), NORMAL_AMD).shape == (0, 2)


def test_tiny_probabilities_keep_their_ratio():
    assert in_site_space([[1e-300, 1.0, 0.0, 3e-300]], NORMAL_AMD)[0] == pytest.approx([0.75, 0.25])


def test_outside_counts_answers_that_the_site_does_not_know():
    rows = [[0.1, 0.6, 0.1, 0.2], [0.6, 0.1, 0.1, 0.2]]
    assert outside(rows, NORMAL_AMD).tolist() == [True, False]
    assert outside(rows, AMD_DME_NORMAL).tolist() == [False, False]


@pytest.mark.parametrize("cover", [(), ((0,),), ((0,), ()), ((0,), (0, 1)), ((0,), (4,)), ((-1,), (0,))])
def test_no_cover(cover):
    with pytest.raises(SettingsError, match="each class once"):
        in_site_space(np.full((1, 4), 0.25), cover)


@pytest.mark.parametrize("rows", [[0.5, 0.5], [[np.nan, 1, 0, 0]], [[-0.1, 1.1, 0, 0]]])
def test_unfit_probabilities(rows):
    with pytest.raises(TrainingError, match="finite and 0 or above"):
        in_site_space(rows, NORMAL_AMD)


def test_it_is_the_softmax_over_the_logits_that_the_site_can_name():
    from scipy.special import logsumexp, softmax

    logits = np.random.default_rng(2).normal(size=(9, 4)) * 3
    merged = np.stack([logsumexp(logits[:, list(own)], axis=1) for own in NORMAL_AMD], axis=1)
    assert in_site_space(softmax(logits, axis=1), NORMAL_AMD) == pytest.approx(softmax(merged, axis=1))
