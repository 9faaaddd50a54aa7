"""When a row is said to help: it beats every row alone, and what is not known of one of them is no answer."""

import pytest

from fedretina_papers.statistics.beats_every import adjusted, hardest, helps_words
from fedretina_papers.statistics.paired_seeds import SeedTest, seed_test

AHEAD, BEHIND, UNKNOWN = seed_test([0.1, 0.11, 0.12]), seed_test([-0.1, -0.11, -0.12]), seed_test([])


@pytest.mark.parametrize(
    ("tests", "p"),
    [
        ({"a": AHEAD, "b": AHEAD._replace(p=0.04)}, 0.04),
        ({"a": AHEAD, "b": BEHIND}, 1.0),
        ({"a": AHEAD, "b": UNKNOWN}, None),
        ({"a": BEHIND, "b": UNKNOWN}, 1.0),  # behind one is behind
        ({"a": UNKNOWN}, None),
    ],
)
def test_the_largest_p_counts_and_one_that_is_not_known_leaves_a_lead_open(tests: dict[str, SeedTest], p: float | None):
    found = hardest("auc", {name: (one, None) for name, one in tests.items()})
    assert found.p == (p if p is None else pytest.approx(p))


def test_a_row_of_which_nothing_is_known_has_too_few_draws_and_no_no():
    found = adjusted(
        {"open": [hardest("auc", {"a": (UNKNOWN, None)})], "behind": [hardest("auc", {"a": (BEHIND, None)})]}
    )
    assert helps_words({"macro AUC": found["open"][0].adjusted}, "draws") == "too few draws"
    assert helps_words({"macro AUC": found["behind"][0].adjusted}, "draws") == "no"
