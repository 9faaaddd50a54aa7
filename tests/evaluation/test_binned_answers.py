"""Counts as the server reads them: what contradicts itself is refused."""

from __future__ import annotations

import pytest
from raw_answers import SITES

from fedretina.errors import RefusedError
from fedretina.evaluation.pooled import confusion, decode
from fedretina.settings.scalars import confusion_name


@pytest.mark.parametrize(
    "change",
    [
        {"bin_confidence_14_images": 3.5},
        {"bin_confidence_14_right": 1e6},
        {"bin_confidence_14_confidence_sum": -1.0},
        {"bin_uncertainty_19_wrong": 1e6},
        {"bin_uncertainty_19_images": 500.0},
        {"bin_uncertainty_19_wrong": float("nan")},
    ],
)
def test_counts_that_contradict_each_other_are_refused(change):
    sent = SITES[0].sent()
    assert set(change) <= set(sent)
    with pytest.raises(RefusedError, match="contradict"):
        decode(sent | change)


def test_bins_that_do_not_reach_the_end_or_stand_alone_are_refused():
    sent = SITES[0].sent()
    for kind in ("bin_confidence_14", "bin_uncertainty_19", "bin_confidence", "bin_uncertainty"):
        with pytest.raises(RefusedError):
            decode({name: value for name, value in sent.items() if not name.startswith(kind)})


def test_a_site_with_too_many_grades_has_no_matrix():
    assert confusion({confusion_name(0, 0): 9.0}, 20)[0][0] == 9
    assert confusion({confusion_name(0, 0): 9.0}, 1000) is None
