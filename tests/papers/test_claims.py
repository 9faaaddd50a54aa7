"""Verdicts by hand-made tests: which way is better, what is adjusted, what is untested."""

from __future__ import annotations

import statistics
from functools import cache
from pathlib import Path

import pytest

from fedretina_papers.blocks.gains import by_hospital, gains, leads_of, stored_block, worst
from fedretina_papers.blocks.results_pages import CLOSEST, HELD, SHARED, TRAINED
from fedretina_papers.blocks.tables import comparisons
from fedretina_papers.blocks.tables import difference as less
from fedretina_papers.claims import seeds_words, verdict_words, verdicts
from fedretina_papers.stored import Benchmark, end_words

ROOT = Path(__file__).parents[2]
PLAN = {"rows": ["feduaa", "a", "b", "c", "d"], "sites": [], "seeds": [1, 2], "reference": "feduaa", "splits": "given"}


@cache
def _block(name):
    return stored_block(ROOT / "benchmarks" / "results" / f"{name}.jsonl.gz")


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
    block = _block("trunk")
    helped = {
        (size, figure): {row for row, both in comparisons(block.plan, runs).items() if both[at].helps}
        for size, runs in block.cases[0][1].items()
        for at, figure in enumerate(("referable_auc", "kappa"))
    }
    even = {"fedbn_even", "scaffold_even"}
    plain = {"fedavg_personal", "fedbn", "fedprox", "scaffold", "moon", "eu", "tweu", "feduaa", "fedavg_trunk"}
    assert helped.pop((100, "referable_auc")) == plain | even | {"sums_stages"}
    assert helped.pop((100, "kappa")) == even
    assert helped.pop((50, "referable_auc")) == {"scaffold", "scaffold_even"}
    assert not any(helped.values())
    for figure in ("referable_auc", "kappa"):
        for size, found in block.cases[0][1].items():
            test, seen = less(found, "feduaa", "fedbn", figure)
            assert (test.p > 0.05, seen > abs(test.mean)) == (True, True), size
    for size, found in block.cases[0][1].items():  # "One message ranks as high, and its means are the highest"
        for row in ("fedbn", "feduaa"):
            test, _ = less(found, "sums_stages", row, "referable_auc")
            assert test.mean > 0
        means = {row: _mean(found, row, "referable_auc") for row in (*plain, "feddyn", "candidate", "sums_stages")}
        assert max(means, key=lambda row: means[row]) == ("candidate" if size == "all" else "sums_stages")
    weighed = [less(found, "feduaa", "tweu", "referable_auc")[0] for found in block.cases[0][1].values()]
    assert all(abs(test.mean) < 0.0015 for test in weighed)  # "by 0.001 or less"
    said = (
        "with 100 at each of seven hospitals, a shared trunk with heads at home tells ill eyes from well ones better "
        "than every way alone; in kappa it does so where both answer as if grades were equally common. With 50 only "
        "SCAFFOLD was seen to gain, with 25, 200 and all photographs none. By neither figure is FedUAA told from "
        "FedBN. By AUC neither of the two is told from heads from sums over all stages, which take one message"
    )
    for page in ("README.md", "docs/rows.md"):
        assert said in " ".join((ROOT / page).read_text().split()), page


@pytest.mark.slow
def test_the_row_of_no_paper_that_comes_closest_is_the_one_that_is_named():
    """What docs/results.md and docs/f1.md say of the mean of sums and FedProx, and of two heads joined."""
    block = _block("f1")
    together = [row.name for row in block.plan.rows if row.role == "federated"]
    found = {row: leads_of(block, row) for row in together}
    assert [row for row, one in found.items() if one.seen == one.cells] == [CLOSEST, "joined_fedprox"]
    assert found["joined"].seen == found["joined"].cells - 1
    for _, sizes in block.cases:
        for runs in sizes.values():
            assert worst(runs[CLOSEST], "kappa") > worst(runs["joined"], "kappa")
            assert _mean(runs, CLOSEST, "auc") < _mean(runs, "joined", "auc")
    like, skewed = (sizes.values() for _, sizes in block.cases)
    for figure, higher in (("ece", like), ("error_auroc", like)):
        assert all(_mean(runs, CLOSEST, figure) > _mean(runs, "joined", figure) for runs in higher)
    assert all(_mean(runs, CLOSEST, "error_auroc") < _mean(runs, "joined", "error_auroc") for runs in skewed)
    p = {"referable AUC": [], "quadratic kappa": []}
    for line in (ROOT / "docs" / "f1.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 10 and cells[1] == block.plan.row(CLOSEST).title:  # of the table against two heads joined
            p[cells[2]].append(float(cells[5].replace("< ", "")))
    assert [one < 0.05 for one in p["referable AUC"]] == [False] * 8
    assert [one < 0.05 for one in p["quadratic kappa"]] == [False] * 5 + [True] * 3


@pytest.mark.slow
def test_the_doctors_page_claims_what_the_tests_say():
    """Its typed sentences: who is not seen to gain, who is seen to, and who loses on scans."""
    f1, f2, e1, o1 = map(_block, ("f1", "f2", "e1", "o1"))
    assert not any(one.against.helps for one in gains(f2, HELD))
    assert not any(one.against.helps for one in gains(e1, SHARED, figure="error_auroc"))
    assert all(one.against.helps for one in gains(f1, HELD))  # "yes, if you have few graded photographs"
    assert not any(one.against.helps for one in gains(f1, HELD, figure="kappa"))
    assert all(one.against.helps for one in gains(f1, "fedavg", figure="kappa"))
    for at, (_, sizes) in enumerate(o1.cases):
        for figure in ("auc", "balanced_accuracy"):
            assert not any(one.against.helps for one in gains(o1, SHARED, at, figure))
            for runs in sizes.values():
                alone = [row.name for row in o1.plan.rows if row.role == "alone" and row.kind != "majority"]
                best = max(by_hospital(runs[row], figure)["octdl"] for row in alone)
                assert all(by_hospital(runs[row], figure)["octdl"] < best for row in (SHARED, TRAINED))
                leads = {row: next(one for one in each if one.figure == figure) for row, each in _tests(o1, runs)}
                if any(one.helps for one in leads.values()):
                    assert max(leads, key=lambda row: _mean(runs, row, figure)).startswith("moco_")
        for one in gains(o1, SHARED, at, "balanced_accuracy"):
            assert one.size == "all" or one.worst < one.worst_alone
            assert one.size == "all" or one.worst < one.worst_best


def test_the_page_of_results_says_of_codecs_what_their_page_says():
    """Each figure in the sentences stands in a table of docs/wire_codec.md, which is rendered from its stored runs."""
    page = (ROOT / "docs" / "wire_codec.md").read_text()
    tables = [line.strip(" |") for line in page.split("<!-- begin figures -->")[1].splitlines() if line.startswith("|")]
    said = (ROOT / "docs" / "results.md").read_text().split("**[Codecs]", 1)[1].split("**[Paper size]", 1)[0]
    points = [cell for line in tables if "| `int4` |" in line for cell in line.split(" | ") if " to " in cell]
    assert len(points) == 6
    assert all(one in said for one in points)
    for name, first, last in (("int8", "1/3.9", "1/8.0"), ("int4", "1/7.4", "1/15.9")):
        shares = [float(line.split("| 1/")[1].split(" ")[0]) for line in tables if f"| `{name}` |" in line]
        assert (f"1/{min(shares)}", f"1/{max(shares)}") == (first, last)
        assert f"{first} to {last}" in said
    for row in ("SCAFFOLD, float32", "SCAFFOLD, int4, controls sent", "SCAFFOLD, int4, controls follow"):
        (line,) = [line for line in tables if line.startswith(f"{row} |")]
        assert f"{line.split(' | ')[3]} GB" in said


def _mean(runs, row, figure):
    return statistics.fmean(by_hospital(runs[row], figure).values())


def _tests(block, runs):
    return comparisons(block.plan, runs).items()


def test_what_bytes_of_an_older_run_leave_out_is_said():
    new, old = {"moved": {"train": {}, "finalise": {}}}, {"moved": {"train": {}}}
    assert end_words([new, new]) == ""
    assert end_words([old, {}]) == "without the model that goes down once at the end"
    assert end_words([old, new, new]) == "in 1 of 3 runs without the model that goes down once at the end"
