"""Verdicts by hand-made tests: which way is better, what is adjusted, what is untested."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedretina_papers.blocks.results_pages import stored_block
from fedretina_papers.blocks.tables import comparisons
from fedretina_papers.blocks.tables import difference as less
from fedretina_papers.claims import seeds_words, verdict_words, verdicts
from fedretina_papers.stored import Benchmark, end_words

ROOT = Path(__file__).parents[2]
PLAN = {"rows": ["feduaa", "a", "b", "c", "d"], "sites": [], "seeds": [1, 2], "reference": "feduaa", "splits": "given"}


def _found(key, cells):
    entries = {}
    for name, (difference, adjusted) in cells.items():
        test = None if adjusted is None else {"holm": adjusted}
        entries[name] = {"mean": {"measures": {key: {"difference": difference, "together": test}}}}
    return {"comparisons": entries}


@pytest.mark.parametrize(("key", "higher"), [("auc", True), ("brier", False), ("aurc", False), ("kappa", True)])
def test_less_is_better_for_some(key, higher):
    found = _found(key, {"a": (0.1, 0.01), "b": (-0.1, 0.01), "c": (0.2, 0.05), "d": (0.1, None)})
    sides = verdicts(Benchmark(PLAN, {}), found, key)
    assert (sides.leads, sides.trails) == ((("a",), ("b",)) if higher else (("b",), ("a",)))
    assert (sides.undecided, sides.untested) == (("c",), ("d",))


def test_the_sentence_names_every_side():
    found = _found("auc", {"a": (0.1, 0.01), "b": (-0.1, 0.01), "c": (0.2, 0.5), "d": (0.1, None)})
    assert verdict_words(Benchmark(PLAN, {}), found) == (
        "**macro AUC**: feduaa leads a. It trails b. It is not told apart from the other row. It could not be tested "
        "against d."
    )
    alone = _found("auc", {"a": (0.1, 0.5), "b": (0.1, 0.5)})
    assert (
        verdict_words(Benchmark(PLAN, {}), alone) == "**macro AUC**: feduaa is not told apart from any of the 2 rows."
    )


def test_what_seeds_cannot_mend_is_told_in_figures():
    entry = {"seeds": {"sd": 0.02, "n": 3}, "patients": {"variance": 0.01**2}}
    words = seeds_words(Benchmark(PLAN, {}), {"comparisons": {"a": {"mean": {"measures": {"auc": entry}}}}})
    assert "a claim of 0.01 in macro AUC takes over 1000 seeds" in words[0]
    assert "about 0.028 to 0.028" in words[1]


def test_pages_in_prose_claim_what_the_tests_of_the_trunk_say():
    block = stored_block(ROOT / "benchmarks" / "results" / "trunk.jsonl.gz")
    helped = {
        (size, figure): {row for row, both in comparisons(block.plan, runs).items() if both[at].helps}
        for size, runs in block.cases[0][1].items()
        for at, figure in enumerate(("referable_auc", "kappa"))
    }
    even = {"fedbn_even", "scaffold_even"}
    plain = {"fedavg_personal", "fedbn", "fedprox", "scaffold", "moon", "eu", "tweu", "feduaa", "fedavg_trunk"}
    assert helped.pop((100, "referable_auc")) == plain | even
    assert helped.pop((100, "kappa")) == even
    assert helped.pop((50, "referable_auc")) == {"scaffold", "scaffold_even"}
    assert not any(helped.values())
    for figure in ("referable_auc", "kappa"):
        for size, found in block.cases[0][1].items():
            test, seen = less(found, "feduaa", "fedbn", figure)
            assert (test.p > 0.05, seen > abs(test.mean)) == (True, True), size
    weighed = [less(found, "feduaa", "tweu", "referable_auc")[0] for found in block.cases[0][1].values()]
    assert all(abs(test.mean) < 0.0015 for test in weighed)  # "by 0.001 or less"
    said = (
        "with 100 at each of seven hospitals, a shared trunk with heads at home tells ill eyes from well ones better "
        "than every way alone; in kappa it does so where both answer as if grades were equally common. With 200 and "
        "all photographs no gain was seen. Neither figure tells FedUAA from FedBN"
    )
    for page in ("README.md", "docs/rows.md"):
        assert said in " ".join((ROOT / page).read_text().split()), page


def test_what_bytes_of_an_older_run_leave_out_is_said():
    new, old = {"moved": {"train": {}, "finalise": {}}}, {"moved": {"train": {}}}
    assert end_words([new, new]) == ""
    assert end_words([old, {}]) == "without the model that goes down once at the end"
    assert end_words([old, new, new]) == "in 1 of 3 runs without the model that goes down once at the end"
