"""Binned answers: nothing small leaves, and nothing follows by subtraction."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from raw_answers import SITES, Raw

from fedretina.errors import SettingsError
from fedretina.evaluation.pooled import confusion, decode
from fedretina.exchange.min_count import OUTCOMES, count_outcomes, encode, told_outcomes
from fedretina.settings.scalars import COUNTS, confusion_name


@pytest.mark.parametrize("raw", SITES)
@pytest.mark.parametrize("min_count", [1, 5, 11])
def test_everything_sent_is_declared_in_range_and_large(raw, min_count):
    sent = raw.sent(min_count)
    for name, value in sent.items():
        low, high = COUNTS[name]
        assert type(value) is float
        assert low <= value <= high
        if name.endswith("_images") or name.startswith("confusion"):
            assert value >= min_count or (value == 0 and name.startswith("bin"))


@pytest.mark.parametrize("raw", SITES)
def test_bins_are_the_raw_answers_on_the_edges_that_the_names_tell(raw):
    bins = decode(raw.sent())
    confidence = raw.probabilities.max(1)
    for at, (low, high) in enumerate(itertools.pairwise(bins.confidence.edges)):
        inside = (confidence > low) & (confidence <= high)
        assert bins.confidence.images[at] == inside.sum()
        assert bins.confidence.right[at] == (inside & ~raw.wrong).sum()
        assert bins.confidence.confidence[at] == pytest.approx(confidence[inside].sum())
    for at, (low, high) in enumerate(itertools.pairwise(bins.uncertainty.edges)):
        inside = (raw.uncertainty > low) & (raw.uncertainty <= high)
        assert bins.uncertainty.images[at] == inside.sum()
        assert bins.uncertainty.wrong[at] == (inside & raw.wrong).sum()
    assert bins.confidence.images.sum() == bins.uncertainty.images.sum() == raw.labels.size


def test_patients_are_counted_not_images():
    raw = Raw(9, 200, eyes=10)
    bins = decode(raw.sent())
    who = np.array(raw.patients)
    for low, high in itertools.pairwise(bins.uncertainty.edges):
        people = np.unique(who[(raw.uncertainty > low) & (raw.uncertainty <= high)]).size
        assert people == 0 or people >= 5
    for true, answer in itertools.product(range(5), repeat=2):
        if confusion_name(true, answer) in raw.sent():
            assert np.unique(who[(raw.labels == true) & (raw.answer == answer)]).size >= 5


def test_bins_are_merged_on_the_edges_that_other_sites_have_too():
    # Fine bins of u hold 3, 3, 5, 0, 5, 6 and, at the end, 2. The edge .2 counts more than .15, and more than .1 with
    # .25 can give; the 2 at the end need company, and the empty stretch before them gives no edge of its own.
    u = np.concatenate(
        [np.full(n, 0.05 * bin_ + 0.02) for bin_, n in ((0, 3), (1, 3), (2, 5), (4, 5), (5, 6), (19, 2))]
    )
    probabilities = np.tile([0.9, 0.1], (u.size, 1))
    sent = encode(probabilities, np.zeros(u.size, int), u, [str(n) for n in range(u.size)])
    bins = decode(sent).uncertainty
    assert dict(zip(bins.ends.tolist(), bins.images.tolist(), strict=True)) == {1: 6, 2: 5, 3: 0, 4: 5, 19: 8}


def slow_merge(images: list[int], least: int) -> int:
    """Largest weight of edges over all ways to cut the bins into runs of none or enough."""
    weights = [16 if end % 4 == 0 else 4 if end % 2 == 0 else 1 for end in range(1, len(images) + 1)]
    best = -1
    for cuts in itertools.product((False, True), repeat=len(images) - 1):
        ends = [at for at, cut in enumerate(cuts) if cut] + [len(images) - 1]
        starts = [0, *(end + 1 for end in ends[:-1])]
        sums = [sum(images[low : high + 1]) for low, high in zip(starts, ends, strict=True)]
        if all(total == 0 or total >= least for total in sums):
            best = max(best, sum(weights[end] for end in ends))
    return best


@pytest.mark.parametrize("seed", range(4))
def test_the_edges_weigh_as_much_as_any_can(seed):
    images = np.random.default_rng(seed).poisson(2.5, 15) * np.random.default_rng(seed + 9).integers(0, 2, 15)
    confidence = np.repeat(np.arange(15) / 15 + 0.03, images)
    n = confidence.size
    table = np.column_stack([confidence, np.tile(((1 - confidence) / 30)[:, None], 30)])[:, :20]
    assert n >= 5
    sent = encode(table, np.zeros(n, int), np.full(n, 0.5), [str(at) for at in range(n)])
    ends = decode(sent).confidence.ends.tolist()
    got = sum(16 if (end + 1) % 4 == 0 else 4 if (end + 1) % 2 == 0 else 1 for end in ends)
    assert got == slow_merge(images.tolist(), 5)


def test_a_site_with_fewer_patients_sends_nothing():
    assert Raw(4, 4).sent() == {}
    assert Raw(4, 40, eyes=10).sent() == {}
    assert decode({}) is None
    assert confusion({}, 5) is None
    whole = Raw(4, 5).sent()
    assert decode(whole).confidence.images.max() == 5


def published(cells: np.ndarray) -> list[list[int | None]]:
    """What leaves a site whose confusion matrix is this one, every image a patient."""
    classes = len(cells)
    labels, answer = (np.repeat(side.ravel(), cells.ravel()) for side in np.indices(cells.shape))
    probabilities = 0.5 * np.eye(classes)[answer] + 0.5 / classes
    sent = encode(probabilities, labels, np.full(labels.size, 0.5), [str(n) for n in range(labels.size)])
    return confusion(sent, classes) or [[None] * classes for _ in range(classes)]


@pytest.mark.parametrize(
    "beside",
    [[3, 8, 0, 0, 9, 12], [4, 4, 30, 0, 20, 20], [1, 6, 7, 8, 9, 10], [2, 2, 2, 30, 30, 30], [4, 1, 5, 5, 5, 5]],
)
def test_one_who_knows_every_rule_and_total_can_tell_no_withheld_cell(beside):
    cells = np.diag([40, 40, 40])
    off = ~np.eye(3, dtype=bool)
    cells[off] = beside
    seen = published(cells)
    hidden = [at for at, place_ in enumerate(np.argwhere(off)) if seen[place_[0]][place_[1]] is None]
    assert 2 <= len(hidden) <= 4
    left = sum(beside[at] for at in hidden)
    fitting = set()
    for guess in itertools.product(range(left + 1), repeat=len(hidden)):
        if sum(guess) == left:
            table = cells.copy()
            values = np.array(beside)
            values[hidden] = guess
            table[off] = values
            if published(table) == seen:
                fitting.add(guess)
    assert tuple(beside[at] for at in hidden) in fitting
    for column in zip(*fitting, strict=True):
        assert len(set(column)) >= 2


@pytest.mark.parametrize("seed", range(30))
def test_withheld_cells_do_not_follow_from_the_totals(seed):
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(2, 5))
    labels = rng.integers(0, classes, int(rng.integers(8, 60)))
    answer = np.where(rng.uniform(size=labels.size) < 0.8, labels, rng.integers(0, classes, labels.size))
    table = published(np.bincount(labels * classes + answer, minlength=classes**2).reshape(classes, classes))
    right = int((labels == answer).sum())
    for total, group in (
        (right, [(k, k) for k in range(classes)]),
        (labels.size - right, [(a, b) for a in range(classes) for b in range(classes) if a != b]),
    ):
        known = [table[a][b] for a, b in group if table[a][b] is not None]
        missing, left = len(group) - len(known), total - sum(known)
        assert all(value >= 5 for value in known)
        if known and left:
            assert missing >= 2
            assert left >= 5


def test_the_smallest_further_cell_is_withheld():
    # Beside the diagonal (none wrong but one): off-diagonal 3 is small, and 6 is the smallest of the others.
    cells = [(0, 0, 20), (1, 1, 20), (2, 2, 20), (0, 1, 3), (1, 2, 6), (2, 1, 9)]
    labels = np.concatenate([np.full(n, true) for true, _, n in cells])
    answer = np.concatenate([np.full(n, answered) for _, answered, n in cells])
    sent = encode(0.6 * np.eye(3)[answer] + 0.4 / 3, labels, np.full(78, 0.5), [str(n) for n in range(78)])
    assert confusion(sent, 3) == [[20, None, None], [None, 20, None], [None, 9, 20]]


def test_cells_that_hold_nobody_need_no_partner():
    labels = np.repeat([0, 1], 10)
    sent = encode(0.8 * np.eye(2)[labels] + 0.1, labels, np.full(20, 0.5), [str(n) for n in range(20)])
    assert confusion(sent, 2) == [[10, None], [None, 10]]


def test_settings_that_cannot_be_met_are_refused():
    with pytest.raises(SettingsError, match="1 or more"):
        SITES[0].sent(0)
    assert len(COUNTS) == 15 * 3 + 20 * 2 + 20 * 20


@pytest.mark.parametrize("grades", [20, 21, 22])
def test_of_many_grades_the_bins_leave_without_a_matrix(grades):
    many = Raw(5, 400, classes=grades)
    sent = many.sent()
    assert set(sent) <= set(COUNTS)
    bins = decode(sent)
    assert int(bins.confidence.images.sum()) == int(bins.uncertainty.images.sum()) == 400
    assert int(bins.uncertainty.wrong.sum()) == int(many.wrong.sum())
    assert any(name.startswith("confusion") for name in sent) == (grades <= 20)
    assert (confusion(sent, grades) is None) == (grades > 20)


def test_outcomes_are_counted_and_leave_no_site_with_its_own():
    sent = {"a": {"verdict": 1.0, "grades": 5.0}, "b": {"verdict": -1.0}, "c": {"grades": 4.0}, "d": {"verdict": 1.0}}
    rest, counts = count_outcomes(sent, {"untold": 2, "lost": 1})
    assert rest == {"a": {"grades": 5.0}, "b": {}, "c": {"grades": 4.0}, "d": {}}
    assert counts == {"gained": 2, "lost": 2, "untold": 2}
    assert sent["a"]["verdict"] == 1.0  # what came is left as it was: the step may have to be closed again


@pytest.mark.attack(
    "a lead",
    "Read off the counts of who gained and who lost by sharing what a single site found",
    "No outcome of a site follows from the counts alone, however they fall",
)
def test_no_sites_own_outcome_follows_from_the_counts_that_are_told():
    names = tuple(OUTCOMES.values())
    for sites in range(1, 8):
        behind = {}
        for each in itertools.product(names, repeat=sites):
            told = told_outcomes({name: each.count(name) for name in names})
            behind.setdefault(str(sorted(told.items())), set()).add(each)
        for possible in behind.values():
            for at in range(sites):
                assert len({each[at] for each in possible}) > 1
    assert told_outcomes({}) == {}
    assert told_outcomes({"gained": 4}) == {"sites": 4, "least": 5}
    assert told_outcomes({"gained": 5}) == told_outcomes({"gained": 4, "lost": 1}) == {"sites": 5, "most": "gained"}
    assert told_outcomes({"gained": 3, "untold": 2}) == {"sites": 5, "gained": 3, "lost": 0, "untold": 2}
