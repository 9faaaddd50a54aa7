"""The same answer to every image, from label counts alone."""

import math

import pytest

from fedretina.errors import TrainingError
from fedretina_papers.statistics.majority_baseline import majority_baseline


def test_figures_of_a_mix_by_hand():
    found = majority_baseline([0, 0, 0, 1], [0, 0, 1, 2], 3)  # odds 4/7, 2/7, 1/7
    assert (found.accuracy, found.balanced_accuracy) == (0.5, pytest.approx(1 / 3))
    assert found.nll == pytest.approx(-(2 * math.log(4 / 7) + math.log(2 / 7) + math.log(1 / 7)) / 4)
    odds = (4 / 7, 2 / 7, 1 / 7)
    each = [sum((p - (k == truth)) ** 2 for k, p in enumerate(odds)) for truth in (0, 0, 1, 2)]
    assert found.brier == pytest.approx(sum(each) / 4)


def test_without_known_labels_all_grades_are_alike():
    found = majority_baseline([], [1, 1], 2)
    assert (found.accuracy, found.balanced_accuracy, found.brier) == (0, 0, pytest.approx(0.5))
    assert math.isfinite(found.nll)


def test_one_class_is_always_right():
    found = majority_baseline([1, 1], [1, 1, 1], 2)
    assert (found.accuracy, found.balanced_accuracy) == (1, 1)


@pytest.mark.parametrize(("known", "labels"), [([0], []), ([0], [2]), ([3], [0]), ([-1], [0])])
def test_labels_that_are_none_of_the_grades_are_refused(known, labels):
    with pytest.raises(TrainingError, match="labels of 0 to 1"):
        majority_baseline(known, labels, 2)
