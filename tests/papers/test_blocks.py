"""Blocks: their controls, and a tiny form of one on phantoms, from its plan to its page."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from made_blocks import TINY, f3, tiny
from scipy.special import log_softmax, softmax

from fedretina.cli import main
from fedretina.errors import DivergedError, SettingsError, StateError
from fedretina.settings.plan import merged
from fedretina_papers.blocks.joined import joined
from fedretina_papers.blocks.page import write_block_page
from fedretina_papers.blocks.plan import BlockCase, BlockPlan
from fedretina_papers.blocks.results_pages import BLOCKS
from fedretina_papers.blocks.runs import BlockRuns, worth
from fedretina_papers.blocks.study import run_block
from fedretina_papers.blocks.tables import comparisons, difference, figure_table, left_out
from fedretina_papers.command import _chosen
from fedretina_papers.packed import read_packed, unpack
from fedretina_papers.plan import preset
from fedretina_papers.studies.block import _before

ROOT = Path(__file__).parents[2]
NONE = dict.fromkeys(("mean", "joined", "ownmean", "ownjoined"))
WHOLE = {"network": {"frozen": "nothing", "frozen_cache": "strict", "frozen_statistics": False}}


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("majority", "rows that stand alone"),
        ("probe", "rows that stand alone"),
        ("pooled", "a pooled row"),
        ("ownmean", "'mean' is made of several answers"),
        ("ownjoined", "'joined' is made of several answers"),
    ],
)
def test_a_plan_without_its_controls_is_refused(gone, said):
    settings = tiny()
    kept = [row for row in settings["rows"] if gone not in (row["name"], *row.get("parts", []))]
    with pytest.raises(SettingsError, match=said):
        BlockPlan.read({**settings, "rows": kept})


def test_a_difference_has_one_p_value():
    with pytest.raises(SettingsError, match="one p value"):
        BlockPlan.read(tiny(reference="singleset", pairs=[["fedavg", "singleset"]]))
    with pytest.raises(SettingsError, match="one p value"):
        BlockPlan.read(tiny(reference="", pairs=[["fedavg", "probe"], ["probe", "fedavg"]]))
    BlockPlan.read(tiny(reference="singleset", pairs=[["fedavg", "probe"], ["fedavg", "sums_both"]]))


def _tables(page):
    """The tables of a page: their lines, each in its cells."""
    parts = [part.splitlines() for part in page.split("\n\n") if part.startswith("|")]
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in lines] for lines in parts]


def test_rows_that_are_run_at_some_sizes_alone(tmp_path):
    """A size of few rows has its tables, and the other size all rows; no size is without its controls."""
    few = ["majority", "probe", "singleset", "fedavg", "pooled"]
    rows = [row for row in tiny()["rows"] if row["name"] in (*few, "sums_both")]
    scaffold = {**next(row for row in rows if row["name"] == "fedavg"), "name": "scaffold", "title": "SCAFFOLD"}
    scaffold["settings"] = {**scaffold["settings"], "row": "scaffold"}
    settings = tiny(rows=[*rows, scaffold], sizes=[16, "all"], only={"all": few})
    assert run_block(BlockPlan.read(settings), tmp_path, 1, lambda told: None) == {}
    ran = {one: {file.name for file in (tmp_path / "results" / "like" / one).iterdir()} for one in ("16", "all")}
    assert ran == {"16": {*few, "sums_both", "scaffold"}, "all": {*few}}
    write_block_page(tmp_path, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    first, second = page.split("### ")[1:]
    assert ("| Heads from sums" in first, "| Heads from sums" in second) == (True, False)
    assert "A correction over the gradient is" in page
    assert ("correction over gradient" in first, "correction over gradient" in second) == (True, False)
    tables = [[dict(zip(head, line, strict=True)) for line in lines] for head, _, *lines in _tables(first)]
    figures, tested = {line["row"]: line for line in tables[0]}, tables[1]
    for line in tested:
        for one, both in (("training passes", "of both"), ("sent per hospital", "by both")):
            told = [figures[name][one] for name in (line["row"], line["least beaten"])]
            assert line[f"{one} {both}"] == " and ".join(told)
    assert "Not run yet" not in page
    assert "\n| all | " in page  # among the leads, since all rows of the size have run
    one, other = settings["cases"][0], {**settings["cases"][0], "name": "other", "rows": few}
    plan = BlockPlan.read({**settings, "cases": [one, other], "only": {}})
    assert plan.names(plan.cases[1]) == tuple(few)
    assert len(plan.at("all", plan.cases[0]).rows) > len(plan.at("all", plan.cases[1]).rows) == len(few)
    for few_rows, said in ((few[1:], "rows that stand alone"), (["x"], "which are no rows")):
        with pytest.raises(SettingsError, match=said):
            BlockPlan.read({**settings, "cases": [one, {**other, "rows": few_rows}], "only": {}})
    for only, said in (({"all": few[1:]}, "rows that stand alone"), ({8: few}, "only names"), ({16: ["x"]}, "only")):
        with pytest.raises(SettingsError, match=said):
            BlockPlan.read({**settings, "only": only})


def test_a_twin_has_the_same_network_and_passes():
    settings = tiny()
    rows = [
        {**row, "settings": {"phases": [{"name": "train", "rounds": 9}]}} if row["name"] == "singleset" else row
        for row in settings["rows"]
    ]
    with pytest.raises(SettingsError, match="differ in passes"):
        BlockPlan.read({**settings, "rows": rows})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"singleset": {"network": {"frozen": 3}}, "fedavg": {"network": {"frozen": 3}}}, "freezes 3 stages"),
        ({"singleset": {"images": {"image_size": 48}}}, "rows of a block see the same images"),
        ({"singleset": WHOLE, "fedavg": WHOLE}, "'mean' joins rows that train all of the network with such"),
        ({"singleset": WHOLE, "fedavg": WHOLE, **NONE}, "no row trains a head on the frozen"),
    ],
)
def test_rows_stand_on_a_frozen_encoder_or_train_all_of_it(changed, said):
    settings = tiny()
    rows = [
        {**row, "settings": merged(row.get("settings", {}), changed.get(row["name"]) or {})}
        for row in settings["rows"]
        if changed.get(row["name"], {}) is not None and "_" not in row["name"].removesuffix("_both")
    ]
    with pytest.raises(SettingsError, match=said):
        BlockPlan.read({**settings, "rows": rows})


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("whole_singleset", {"standard": True}, "leave out standard"),
        ("whole_pooled", {"of": "whole_fedbn"}, "take a row that shares all"),
        ("sums", {"tune": [{"setting": "training.learning_rate", "values": [1, 2, 3]}]}, "train nothing"),
    ],
)
def test_what_a_row_does_not_do_is_refused(name, changed, said, tmp_path):
    settings = f3(tmp_path).model_dump(mode="json")
    settings["rows"] = [{**row, **changed} if row["name"] == name else row for row in settings["rows"]]
    with pytest.raises(SettingsError, match=said):
        BlockPlan.read(settings)


def test_a_value_with_which_training_diverged_is_not_chosen(tmp_path, monkeypatch):
    plan, ran = f3(tmp_path), BlockRuns._run

    def run(self, case, row, hospitals, seed, change):
        if change.get("training", {}).get("learning_rate") == 4e-3:
            raise DivergedError("the loss became nan.")
        return ran(self, case, row, hospitals, seed, change)

    monkeypatch.setattr(BlockRuns, "_run", run)
    chosen = BlockRuns(plan, tmp_path / "out").tuned("two", plan.row("singleset"))
    assert chosen["training"]["learning_rate"] < 4e-3
    tried = json.loads((tmp_path / "out" / "tuning" / "two" / "singleset.json").read_text())["tried"][0]["tried"]
    assert tried["0.004"] is None


def test_several_draws_at_a_time_give_the_results_of_one_after_the_other(tmp_path):
    plan, told = f3(tmp_path), []
    runs = 2 * len(plan.rows)
    for jobs in (1, 2):
        assert run_block(plan, tmp_path / str(jobs), jobs, told.append) == {}
    names = [one.words.split(":")[0] for one in told]
    assert sorted(names[:runs]) == sorted(names[runs:])
    assert {one.done for one in told[runs:]} == set(range(1, runs + 1))

    def records(jobs):
        files = [file for kind in ("results", "tuning") for file in (tmp_path / jobs / kind).rglob("*.json")]
        read = {str(file.relative_to(tmp_path / jobs)): json.loads(file.read_text()) for file in files}
        return {name: {**one, "seconds": 0} for name, one in read.items()}

    assert records("1") == records("2")
    assert len(records("1")) == runs + 1
    whole = [one for name, one in records("1").items() if "/whole_" in name]
    assert {one["passes"] for one in whole} == {2}
    by_row = {one["row"]: one for one in whole}
    assert by_row["whole_singleset"]["bytes_up"] == 0
    assert by_row["whole_singleset"]["machine"]["instructions"] == torch.backends.cpu.get_cpu_capability()
    # A head of 5 classes over 1,280 features travels with all, or nothing of it and of BatchNorm.
    assert by_row["whole_fedavg"]["bytes_up"] > by_row["whole_fedbn"]["bytes_up"] > 2 * 4 * 3e6


def test_less_is_better_in_tuning_and_in_tests():
    """AURC, ECE, Brier score and log loss: the lower one is chosen, and the lower row leads."""
    good, bad = ({"site": {"error_auroc": 0.7, "aurc": value}} for value in (0.2, 0.4))
    assert worth(good) > worth(bad)
    assert worth({"site": {"error_auroc": 0.8, "aurc": None}}) == 0.8
    low, high = (
        {draw: {"sites": {"site": {"test": {"aurc": value + draw / 100}}}, "drawn": {}} for draw in range(3)}
        for value in (0.2, 0.4)
    )
    test, _ = difference({"low": low, "high": high}, "low", "high", "aurc")
    assert test.mean == pytest.approx(0.2)


def test_a_row_helps_only_where_it_beats_every_row_alone():
    plan = BlockPlan.read(tiny(draws=5, primary=1, figures=["kappa"]))

    def runs(**levels):
        return {
            name: {
                draw: {
                    "sites": {
                        "site-1": {"test": dict.fromkeys(plan.figures, level + 0.001 * draw * (name == "fedavg"))}
                    },
                    "drawn": {},
                    "passes": 20,
                    "bytes_up": 0,
                }
                for draw in range(5)
            }
            for name, level in levels.items()
        }

    alone = {"majority": 0.5, "probe": 0.7, "singleset": 0.6, "pooled": 0.9}
    (wins,) = comparisons(plan, runs(**alone, fedavg=0.75))["fedavg"]
    assert wins.helps
    assert wins.control == "probe"
    (behind,) = comparisons(plan, runs(**alone, fedavg=0.65))["fedavg"]
    assert not behind.helps
    assert behind.p == 1
    with pytest.raises(StateError, match="singleset"):
        figure_table(plan, runs(majority=0.5, probe=0.7, pooled=0.9, fedavg=0.8))


def test_what_is_joined_is_the_mean_of_the_heads_each_at_the_temperature_of_all_hospitals():
    draw = np.random.default_rng(3)
    labels = {"a": draw.integers(0, 3, 30), "b": draw.integers(0, 2, 20)}
    truth = {name: np.eye(int(one.max()) + 1)[one] for name, one in labels.items()}
    logits = [
        {name: scale * (one + draw.normal(0, 0.8, one.shape)) for name, one in truth.items()} for scale in (9.0, 0.5)
    ]
    said = joined([{n: (softmax(z, axis=1),) * 2 for n, z in part.items()} for part in logits], labels)

    def loss(part, value):
        return -sum(log_softmax(z[at] / value)[labels[name][at]] for name, z in part.items() for at in range(len(z)))

    grid = np.geomspace(0.05, 20, 2000)
    best = [grid[np.argmin([loss(part, value) for value in grid])] for part in logits]
    assert best[0] > 2
    assert best[1] < 1
    for name in labels:
        expected = softmax(sum(part[name] / value for part, value in zip(logits, best, strict=True)) / 2, axis=1)
        assert said[name].probabilities == pytest.approx(expected, abs=0.005)
        assert said[name].uncertainty.tolist() == pytest.approx((1 - said[name].probabilities.max(1)).tolist())


def test_a_tiny_block_runs_goes_on_and_is_rendered(tmp_path):
    plan = tmp_path / "plan.yaml"
    rows = tiny()["rows"]
    rows[2] = {**rows[2], "tune": [{"setting": "training.learning_rate", "values": [1e-6, 3e-6, 9e-6], "grows": 1}]}
    plan.write_text(yaml.safe_dump({**TINY, "rows": rows}))
    out = tmp_path / "out"
    words = ["benchmark", "e1", "--plan", plan, "--phantoms", "site-1,site-4", "--out", out]

    def run(*more):
        return CliRunner().invoke(main, [str(word) for word in (*words, *more)])

    first = run("--store", tmp_path / "packed.jsonl.gz")
    assert first.exit_code == 0, first.output
    assert "26 of 26: " in first.output
    assert not any(name.startswith("cache") for name in read_packed(tmp_path / "packed.jsonl.gz"))
    page = (out / "page.md").read_text()
    assert "Heads from sums: mean of own and federated head | together |" in page
    assert "| 4 \\* |" in page  # two members, twice the passes
    assert "beats every row alone" in page
    held = {row["name"]: out / "results" / "like" / "16" / row["name"] / "draw-0.json" for row in rows}
    sites = {name: json.loads(file.read_text())["sites"] for name, file in held.items()}
    assert sites["singleset_temperature"] == sites["singleset"]  # too few images for any other temperature than 1
    assert len({json.dumps(sites[name]) for name in ("mean", "joined", "fedavg", "sums_both")}) == 4
    assert "Every grade is in the sums here, however few its patients." in page
    tuned = json.loads((out / "tuning" / "like" / "singleset.json").read_text())["tried"][0]
    assert len(tuned["tried"]) == 4  # the best stood at the end, and the grid grew

    one = out / "results" / "like" / "16" / "fedavg" / "draw-1.json"
    before = json.loads(one.read_text())
    assert "| images | by | best alone |" in page
    one.unlink()
    assert run("--render").exit_code == 0
    uneven = (out / "page.md").read_text()  # a mean of one draw is not set beside means of two
    assert "| images | by | best alone |" not in uneven
    assert "at no size all rows have run in all draws: Like." in uneven
    again = run()
    assert again.output.count(" of 26: ") == 1
    assert {**json.loads(one.read_text()), "seconds": 0} == {**before, "seconds": 0}
    assert (out / "page.md").read_text() == page

    (out / "results" / "like" / "16" / "probe" / "draw-0.json").unlink()
    assert run("--render").exit_code == 0
    assert "Not run yet: Majority answer (1 draw)" in (out / "page.md").read_text()  # that draw is left out for all
    (out / "results" / "like" / "16" / "probe" / "draw-1.json").unlink()
    assert run("--render").exit_code == 0
    assert "Not shown: these controls have not run in every draw yet: probe." in (out / "page.md").read_text()

    plan.write_text(yaml.safe_dump({**TINY, "rows": rows, "least": 3}))
    assert "begun with other settings (least)" in run().output


def test_small_grades_stay_out_of_a_row_that_says_so(tmp_path, caplog):
    settings = tiny(sizes=["all"], draws=1, figures=["auc", "kappa", "ece"], least=20)
    names = ("majority", "probe", "singleset", "sums_both", "fedavg", "pooled")
    rows = [row for row in settings["rows"] if row["name"] in names]
    both = next(row for row in rows if row["name"] == "sums_both")
    rows.append({**both, "name": "held", "title": "Mean, with the default policy", "small_grades": False})
    told = []
    caplog.set_level("INFO")
    assert not run_block(BlockPlan.read({**settings, "rows": rows}), tmp_path, 1, told.append)
    left = [one.getMessage() for one in caplog.records if "of fewer patients than min_count" in one.getMessage()]
    assert 0 < len(left) <= 3  # once for each hospital that has such a grade: in one of the two rows of sums alone
    folder = tmp_path / "results" / "like" / "all"
    held, every = (json.loads((folder / name / "draw-0.json").read_text()) for name in ("held", "sums_both"))
    assert held["sites"] != every["sites"]
    write_block_page(tmp_path, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "But for the rows with the default policy, every grade is in the sums here" in page
    assert "So they do not count every grade at every hospital. Left out: " in page


def test_grades_that_are_left_out_are_counted_in_hospitals():
    case = BlockCase(name="four", title="Four", hospitals={"kermany": 3, "octdl": 1})
    grades = ["normal", "amd", "dme"]
    sets = {
        "kermany": {"grades": grades, "images": {"test": [117, 127, 6]}},
        "octdl": {"grades": grades, "images": {"test": [67, 206, 18]}},
    }
    assert left_out(case, sets, 10) == "dme at 3 of 4 hospitals (6 test images of kermany)"
    assert left_out(case, sets, 6) == ""
    two = "dme at 4 of 4 hospitals (6 test images of kermany and 18 test images of octdl)"
    assert left_out(case, sets, 20) == two


@pytest.mark.parametrize("name", BLOCKS)
def test_the_page_is_that_of_the_stored_runs(name, tmp_path):
    unpack(ROOT / "benchmarks" / "results" / f"{name}.jsonl.gz", tmp_path / "out")
    write_block_page(tmp_path / "out", tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == (ROOT / "docs" / f"{name}.md").read_text()


@pytest.mark.parametrize("name", ["f3-scans", "o1", "p1", "p1-photographs"])
def test_encoders_are_pre_trained_for_as_long_as_those_of_the_stored_runs(name, tmp_path):
    unpack(ROOT / "benchmarks" / "results" / f"{name.replace('-', '_')}.jsonl.gz", tmp_path)
    stored = json.loads((tmp_path / "plan.json").read_text())["encoders"]
    sites = {set_name for case in preset(name)["cases"] for set_name in case["hospitals"]}
    before = _before(BlockPlan.read({**preset(name), "sites": dict.fromkeys(sorted(sites))}))
    asked = {one.name: one.enough for one in before.encoders if one.name in stored}
    assert asked == {one: told["passes"] for one, told in stored.items()}


def test_the_page_has_the_prose_of_todays_plan(tmp_path):
    """Prose that was mended after the runs stands on the page; that of the store, from when they began, does not."""
    unpack(ROOT / "benchmarks" / "results" / "f2.jsonl.gz", tmp_path / "out")
    plan = tmp_path / "out" / "plan.json"
    stored = json.loads(plan.read_text())
    for name in ("f2", "my_own"):
        old = {"title": f"Old {name}", "about": [f"Old question of {name}."], "reading": [f"Old reading of {name}."]}
        plan.write_text(json.dumps({**stored, **old, "name": name}))
        write_block_page(tmp_path / "out", tmp_path / f"{name}.md")
    page, today = (tmp_path / "f2.md").read_text(), preset("f2")
    assert "Old" not in page
    assert all(words in page for words in (today["title"], *today["about"], *today["reading"]))
    own = (tmp_path / "my_own.md").read_text()  # the package has no plan of that name
    assert all(words in own for words in ("Old my_own", "Old question of my_own.", "Old reading of my_own."))


def test_rows_that_are_asked_for_are_left_in_every_list_of_rows():
    """Those that docs/paper_tables.md names for `f3`, which has rows at some sizes alone and pairs."""
    page = (Path(__file__).parents[2] / "docs" / "paper_tables.md").read_text()
    (named,) = re.findall(r"`--rows (majority,[a-z_,]+)`", page)
    sites = dict.fromkeys(("aptos2019", "eyepacs", "idrid", "odir5k"))
    plan = BlockPlan.read({**_chosen(preset("f3"), "f3", named), "sites": sites})
    assert [row.name for row in plan.rows] == named.split(",")
    assert "kept_fedavg" in plan.only[200]
    scans = _chosen(preset("f3-scans"), "f3-scans", "majority,probe,alone,whole_alone,whole_fedavg,whole_pooled,fedavg")
    plan = BlockPlan.read({**scans, "sites": dict.fromkeys(("kermany", "octdl"))})
    assert "whole_fedavg" in plan.names(plan.cases[1])
    four = _chosen(preset("f3-scans"), "f3-scans", "majority,moco_whole_scaffold")["cases"]
    assert [case["name"] for case in four] == ["four", "sixteen"]
    (four,) = _chosen(preset("f3-scans"), "f3-scans", "moco_whole_scaffold")["cases"]
    assert four["name"] == "four"  # none of the rows is run at sixteen, and no rows would mean all
