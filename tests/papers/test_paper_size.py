"""The papers' size: a tiny plan on the CPU, stopped by its clock, taken up again, and its page at each stage."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.data.modalities.fundus import Fundus
from fedretina.data.phantoms.draw import write_hospital
from fedretina.data.phantoms.hospital import phantom_hospital
from fedretina.errors import SettingsError, StoppedError
from fedretina.settings.plan import merged
from fedretina.storage import write_json
from fedretina_papers.choices import passes
from fedretina_papers.one_run import sites_of
from fedretina_papers.paper_size.limits import Budget, Expected, Limits, Pace
from fedretina_papers.paper_size.page import compare_parts, will_send, write_paper_size_page
from fedretina_papers.paper_size.plan import PaperSizePlan
from fedretina_papers.paper_size.run import Call, _known, run_paper_size
from fedretina_papers.plan import preset

LITTLE = {"encoder": "efficientnet_lite0", "weights": {"source": "none"}}
SHORT = {"batch_size": 8, "precision": "bf16", "threads": 1}
TINY = {
    "seeds": [1],
    "speed": {"steps": 1, "turns": 1},
    "parts": {
        "fundus": {
            "first": 2,
            "plan": {
                "rows": [
                    {"name": "probe", "row": "analytic", "settings": {"phases": {"sums": {"sums": {"answer": "own"}}}}},
                    "singleset",
                    "feduaa",
                ],
                "experiment": {
                    "phases": {"train": {"rounds": 2}},
                    "images": {"image_size": 32},
                    "network": LITTLE,
                    "training": SHORT,
                    "phantom_images": 24,
                },
            },
        },
        "oct": {
            "first": 1,
            "plan": {
                "rows": [
                    {"name": "oct_alone", "row": "oct_fedavg", "settings": {"exchange": {"personal": "everything"}}},
                ],
                "experiment": {
                    "phases": {"pretrain": None, "train": {"rounds": 1, "training": {**SHORT, "epochs": 1}}},
                    "images": {"image_size": 32},
                    "classes": None,
                    "network": LITTLE,
                    "phantom_images": 24,
                    "training": {"threads": 1},
                },
            },
        },
    },
}
ONE_PLACE = next(
    one
    for one in preset("paper-size")["parts"]["fundus"]["plan"]["rows"]
    if isinstance(one, dict) and one["name"] == "one_place"
)
RUNS = ["fundus, probe, seed 1", "oct, oct_alone, seed 1", "fundus, singleset, seed 1", "fundus, feduaa, seed 1"]


class Steps:
    """A clock that goes on by a minute, or as long as is asked, each time that it is read."""

    def __init__(self, seconds=60):
        self.now, self.seconds = 0.0, seconds

    def __call__(self):
        self.now += self.seconds
        return self.now


def plan(**words):
    return PaperSizePlan.read(merged(preset("paper-size"), {**TINY, "sites": {"site-1": None}, **words}))


def call(out, minutes=None, state_mb=None, **words):
    told = []
    limits = Limits(minutes, out.parent / "cache", state_mb, Steps())
    assert run_paper_size(plan(**words), out, 1, limits, told.append) == {}
    return [one.words for one in told]


def figures(out):
    return {
        path.relative_to(out).as_posix(): json.loads(path.read_text())["sites"]
        for path in sorted(out.glob("*/results/*/*.json"))
    }


def page_of(out, folder):
    write_paper_size_page(out, folder / "page.md")
    return (folder / "page.md").read_text()


def hospitals(folder):
    """Two of fundus photographs, as files: their site files by name."""
    for name in ("north", "south"):
        write_hospital(name, phantom_hospital(name, 24), folder / name, 32, 1)
    return {name: str(folder / name / "site.yaml") for name in ("north", "south")}


@pytest.fixture(scope="module")
def whole(little_encoders, tmp_path_factory):
    """All runs of the tiny plan in one call, and what the call said."""
    out = tmp_path_factory.mktemp("whole") / "out"
    return out, call(out)


def test_everything_runs_in_bfloat16_in_the_order_of_what_it_tells(whole):
    out, told = whole
    assert [words.partition(":")[0] for words in told] == ["fundus", "oct", *RUNS]
    record = json.loads((out / "fundus/results/feduaa/seed-1.json").read_text())
    assert record["settings"]["training"]["precision"] == "bf16"
    assert (record["passes"], record["images_seen"]) == (2, 2 * record["sites"]["site-1"]["images"]["train"])
    speed = json.loads((out / "fundus/speed.json").read_text())
    assert speed["precision"] == "bf16"
    assert speed["ratio"] == pytest.approx(speed["real"][0] / speed["synthetic"][0])
    # Nothing is left that is large, and a next call has nothing to do.
    assert not list(out.rglob("*.safetensors"))
    assert not list(out.rglob("images-*"))
    before = figures(out)
    assert call(out) == []
    assert figures(out) == before


def test_pre_training_scaffold_and_images_in_one_place_run_too(little_encoders, tmp_path):
    short = {"rounds": 1, "training": {**SHORT, "epochs": 1}}
    alone = {"classes": None, "pooled": True, "exchange": {"personal": "everything", "batchnorm": "local_all"}}
    own = {"exchange": {"personal": "everything"}, "classes": None}
    apart = {"name": "oct_alone", "row": "oct_fedavg", "settings": own}
    together = {"name": "oct_moco_centralised", "row": "oct_moco_fedavg", "settings": alone}
    fundus, scans = TINY["parts"]["fundus"]["plan"], TINY["parts"]["oct"]["plan"]
    phases = {"pretrain": short, "train": short}
    parts = {
        "fundus": {"plan": {**fundus, "rows": ["singleset", ONE_PLACE]}},
        "oct": {
            "plan": {
                "rows": [apart, together, "oct_moco_scaffold"],
                "experiment": {**scans["experiment"], "phases": phases, "classes": ["normal", "drusen", "dme", "cnv"]},
            }
        },
    }
    out = tmp_path / "out"
    assert call(out, parts=parts, sites={"site-1": None, "site-2": None})
    ran = {path.parent.name: json.loads(path.read_text()) for path in out.glob("*/results/*/*.json")}
    assert ran.keys() == {"singleset", "one_place", "oct_alone", "oct_moco_centralised", "oct_moco_scaffold"}
    assert ran["oct_moco_scaffold"]["sites"].keys() == {"site-1", "site-2"}
    assert ran["oct_moco_scaffold"]["passes"] == 3  # two views of each image, and its label


def test_stopped_by_its_clock_at_each_order_it_ends_with_the_same_figures(whole, tmp_path):
    out, calls = tmp_path / "out", []
    (tmp_path / "cache").symlink_to(whole[0].parent / "cache")
    while not calls or "the time of this call is over" in calls[-1][-1]:
        calls.append(call(out, minutes=8))
        assert len(calls) < 20
        # What one call has begun lies in the folder that the next one is given, wherever that is.
        moved = tmp_path / f"moved-{len(calls)}"
        shutil.copytree(out, moved)
        shutil.rmtree(out)
        out = moved
    assert len(calls) > len(RUNS)  # runs were stopped within themselves
    assert figures(out) == figures(whole[0])
    said = [words for one in calls for words in one]
    assert any("is unfinished; its state of" in words for words in said)
    assert [words.partition(":")[0] for words in said if "macro AUC" in words] == RUNS


def test_images_in_one_place_go_on_from_call_to_call_behind_the_last_whole_round(little_encoders, tmp_path):
    fundus = TINY["parts"]["fundus"]["plan"]
    longer = merged(fundus, {"experiment": {"phases": {"train": {"rounds": 3}}}})
    words = {"parts": {"fundus": {"plan": {**longer, "rows": [ONE_PLACE], "reference": "one_place"}}}}
    words["sites"] = hospitals(tmp_path / "hospitals")
    call(tmp_path / "whole", **words)
    calls = []
    while not calls or "the time of this call is over" in calls[-1][-1]:
        calls.append(call(tmp_path / "out", minutes=7, **words))
        assert len(calls) < 12
    begun = [int(one) for words in calls for one in re.findall(r"after (\d) of 3 orders", " ".join(words))]
    assert begun == sorted(begun)
    assert {1, 2} & set(begun)  # stopped within itself, and never back at the beginning
    assert figures(tmp_path / "out") == figures(tmp_path / "whole") != {}


def test_an_order_that_would_not_be_done_in_time_is_not_begun():
    assert 0 < pickle.loads(pickle.dumps(Budget.of(Limits(10)))).left <= 580  # as a process of its own gets it
    clock = Steps()
    budget = Budget.of(Limits(10, clock=clock))
    assert budget.end == 60 + 600 - 20
    pace = Pace(budget, Expected(0, 0))
    for begun in range(8):
        pace(begun, 20)
    with pytest.raises(StoppedError, match="after 8 of 20 orders; the next one goes on"):
        pace(8, 20)
    # The ninth order would have begun at 600 s and lasted 60, beyond 640.
    assert clock.now == 600
    assert pace.longest == 60
    with pytest.raises(StoppedError, match="after 0 of 20"):
        Pace(Budget(1000, lambda: 0.0), Expected(1000, 1000))(0, 20)
    done = Pace(Budget(0.0, lambda: 5.0), Expected(1, 1))
    done(20, 20)  # what is done is done
    assert done.longest == 0  # what was expected is not what was found


def test_a_round_that_would_not_be_done_in_time_is_not_begun_with_its_first_order():
    pace = Pace(Budget.of(Limits(10, clock=Steps())), Expected(0, 0), orders=4)  # ends at 640 s, a look is 60 s later
    for begun in range(5):
        pace(begun, 12)
    pace(5, 12)  # at 420 s: three more orders of 60 s are left of a round that has begun
    again = Pace(Budget.of(Limits(10, clock=Steps(85))), Expected(0, 0), orders=4)  # ends at 665 s
    for begun in range(4):
        again(begun, 12)
    with pytest.raises(StoppedError, match="after 4 of 12"):  # at 510 s a round of 340 s
        again(4, 12)
    with pytest.raises(StoppedError, match="a round takes about 20 min, more than a call has; give more --minutes"):
        Pace(Budget.of(Limits(10, clock=Steps())), Expected(300, 1200), orders=4)(0, 12)


def test_the_first_order_of_an_encoder_of_which_nothing_is_known_is_bound_too(tmp_path):
    def known(minutes, encoder="resnet50", jobs=2):
        call = Call(tmp_path, tmp_path, Budget.of(Limits(minutes, clock=Steps())), jobs, keeps=True)
        return _known(tmp_path, encoder, call)

    # Nothing is known at all: a part of a minute, or of a short call, must be left.
    assert known(10).expected(20, [100, 300]) == (30, 30)
    assert known(1).expected(20, [100, 300]) == (13.5, 13.5)
    assert known(None).expected(20, [100, 300]) == (0, 0)
    with pytest.raises(StoppedError, match="after 0 of 8"):
        Pace(Budget(29, lambda: 0.0, 580), known(10).expected(20, [100]))(0, 8)
    # The speed of the part's reference, at two runs at a time, tells how long an order is.
    write_json(tmp_path / "speed.json", {"encoder": "resnet50", "real": [300.0, 300.0]})
    for encoder in ("resnet50", "efficientnet_b4"):
        assert known(10, encoder).expected(20, [100, 900]) == pytest.approx((180, 200))
    # A run that has ended tells more: so long an order, and longer where it holds more images.
    record = {"settings": {"network": {"encoder": "resnet50"}}, "seconds": 50, "passes": 5, "images_seen": 1000}
    write_json(tmp_path / "results/row/seed-1.json", record | {"longest_order": 40, "images_of_it": 200})
    assert known(10).expected(1, [100, 100]) == (40, 80)
    assert known(10).expected(5, [100]) == (100, 100)


def test_image_caches_are_built_within_the_time_and_the_next_call_goes_on_behind_what_it_finds(tmp_path, monkeypatch):
    sites = hospitals(tmp_path)
    cached = []
    real = Fundus.pipeline
    monkeypatch.setattr(
        Fundus, "pipeline", staticmethod(lambda settings: lambda path: (cached.append(path), real(settings)(path))[1])
    )
    asked, calls = plan(sites=sites), []
    while not calls or "image caches" in calls[-1][0].words:
        told = []
        # So short a call has time for some images, and then for no run.
        limits = Limits(minutes=8, cache=tmp_path / "cache", clock=Steps(20))
        assert run_paper_size(asked, tmp_path / "out", 1, limits, told.append) == {}
        calls.append(told)
        assert len(calls) < 12
    first = calls[0][0]
    assert (len(calls[0]), first.done, first.total) == (1, 0, 3)
    assert re.search(
        r"the time of this call is over: \d+ of \d+ images of north are cached; the next call goes on with the image "
        r"caches of north and south, and no run begins before they are whole$",
        first.words,
    )
    assert len(calls) > 3
    assert "**This has not run.**" in page_of(tmp_path / "out", tmp_path)
    # At each stop at most as many images as are decoded side by side are lost.
    images = sum(len(list((tmp_path / name / "images").iterdir())) for name in sites)
    assert {Path(path).name for path in cached} >= {path.name for path in (tmp_path / "north/images").iterdir()}
    assert len(cached) <= images + 32 * len(calls)
    whole = [sites_of(asked.benches["fundus"], tmp_path, 1, [name], cache=tmp_path / "cache") for name in sites]
    assert all(sum(data.graded.values()) for one in whole for data in one.values())


def test_what_may_not_be_left_behind_is_not_begun_or_dropped(whole, tmp_path):
    (tmp_path / "cache").symlink_to(whole[0].parent / "cache")
    shutil.copytree(whole[0], tmp_path / "out")
    (tmp_path / "out/fundus/results/feduaa/seed-1.json").unlink()
    words = call(tmp_path / "out", minutes=6, state_mb=0)  # the other row took longer
    assert words[0].startswith(f"{RUNS[-1]}: not begun: it takes about")
    assert words[1:] == [f"the time of this call is over; the next call goes on with {RUNS[-1]}"]
    assert not list((tmp_path / "out/fundus/runs").rglob("*.json"))


def test_a_run_that_cannot_be_is_told_and_the_others_go_on(whole, tmp_path):
    (tmp_path / "cache").symlink_to(whole[0].parent / "cache")
    shutil.copytree(whole[0], tmp_path / "out")
    broken = {"name": "broken", "row": "singleset", "settings": {"training": {"batch_size": 4096}}}
    parts = {"fundus": {"plan": {"rows": [*TINY["parts"]["fundus"]["plan"]["rows"][:2], broken, "feduaa"]}}}
    told = []
    asked = plan(**merged(TINY, {"parts": parts}))
    limits = Limits(cache=tmp_path / "cache", clock=Steps())
    missing = run_paper_size(asked, tmp_path / "out", 1, limits, told.append)
    assert list(missing) == ["fundus, broken, seed 1"]
    assert "fewer than one batch" in missing["fundus, broken, seed 1"]
    assert told[-1].done == 4


def test_the_page_of_nothing_of_a_part_and_of_all(whole, tmp_path):
    def page(out):
        return page_of(out, tmp_path)

    nothing = page(tmp_path / "none")
    assert "**This has not run.**" in nothing
    assert nothing.count("**Has not run.**") == 2
    assert "| FedUAA | resnet50 | from scratch | 20 | 1.9 GB | has not run |" in nothing
    assert "| Frozen probe, own heads | efficientnet_lite0, frozen | from ImageNet | 0 | " in nothing
    assert nothing.count("**Rows from scratch say little about the paper's table.**") == 2
    assert "15 of 20 rows start from the seed and train for 20 to 120 passes over the data; the paper's" in nothing
    assert "12 of 13 rows start from the seed and train for 24 to 64 passes over the data; the paper's" in nothing
    known = {"fundus": {"plan": {"experiment": {"network": {"weights": {"source": "package"}}}}}}
    write_json(tmp_path / "known/plan.json", plan(parts=merged(TINY["parts"], known)).model_dump(mode="json"))
    assert page(tmp_path / "known").count("Rows from scratch say little") == 1

    shutil.copytree(whole[0], tmp_path / "some")
    shutil.rmtree(tmp_path / "some/oct")
    (tmp_path / "some/fundus/results/feduaa/seed-1.json").unlink()
    some = page(tmp_path / "some")
    assert "**2 of 4 runs** are stored, on no GPU" in some
    assert "**Nothing here ran on a GPU**" in some
    assert "**Has not run**: FedUAA." in some
    assert some.count("**Has not run.**") == 1
    assert "| SingleSet | efficientnet_lite0 | from scratch | 2 | 0 bytes | 1 of 1 |" in some
    assert "| FedUAA | not run |" in some
    assert "Not compared yet" in some

    shutil.copytree(whole[0], tmp_path / "all")
    compare_parts(plan(), tmp_path / "all")
    every = page(tmp_path / "all")
    assert "**Has not run" not in every
    assert "has not run |" not in every
    assert "phantoms: drawn pictures" in every
    assert "SingleSet less the row" in every
    fundus, oct_ = every.split("## OCT scans")
    helping = fundus.split("### Does sharing help?")[1].split("### What else was measured")[0]
    titles = [line.split("**")[1] for line in helping.splitlines() if line.startswith("**")]
    assert titles == ["Macro AUC", "Referable AUC", "Quadratic kappa"]
    assert helping.count("| FedUAA | ") == 3
    assert "| helps |" in fundus
    assert "Does sharing help?" not in oct_  # nothing together has run there
    assert "Figures are of the last round, the test split is read once." in every
    assert "of Alone, OCT: efficientnet_lite0 from scratch, 32 px; train 1 round of 1 epoch, adam at 0.001" in every
    assert "The aim on a GPU is 0.9 or more: this was none." in every
    assert "Table 3:" in every
    assert every == page(tmp_path / "all")


def test_what_a_site_will_send_is_what_it_sent(whole):
    asked = plan()
    for work in asked.works():
        name, choice, _ = asked.named(work).split(", ")
        record = json.loads((whole[0] / name / "results" / choice / "seed-1.json").read_text())
        assert will_send(asked.experiment_of(work)) * len(record["sites"]) == record["bytes_up"], choice


def test_the_plan_that_comes_with_the_package():
    asked = PaperSizePlan.read({**preset("paper-size"), "sites": {"site-1": None}})
    order = [asked.named(work) for work in asked.works()]
    assert order[:5] == [
        "fundus, probe, seed 1",
        "oct, probe, seed 1",
        "fundus, singleset, seed 1",
        "oct, oct_alone, seed 1",
        "fundus, singleset_tweu, seed 1",
    ]
    controls = ("singleset_tweu", "one_place", "one_place_tweu")
    assert all(order.index(f"fundus, {one}, seed 1") < order.index("fundus, feduaa, seed 1") for one in controls)
    assert order.index("oct, oct_simclr_fedavg, seed 1") < order.index("fundus, probe, seed 2")
    seen = {asked.named(work): passes(asked.experiment_of(work)) for work in asked.works()}
    assert seen["fundus, singleset, seed 1"] == 20
    assert seen["fundus, fedrep, seed 1"] == 120
    assert seen["oct, oct_moco_scaffold, seed 1"] == 4 * 5 * 2 + 8 * 3
    for name, bench in asked.benches.items():
        for choice in bench.rows:
            experiment = bench.experiment_of(choice, 1, {})
            trained = [phase.training or experiment.training for phase in experiment.phases if phase.sums is None]
            assert all(one.precision == "bf16" for one in trained), (name, choice.name)
            assert all(one.optimizer_state == "keep" for one in trained), (name, choice.name)


def test_what_is_asked_wrongly_is_a_sentence(tmp_path):
    site = tmp_path / "site.yaml"
    site.write_text("data: {manifest: manifest.csv, scheme: {grades: [a, b]}}\n")
    for words, sentence in (
        (("feduaa", "--minutes", "5"), "--minutes can be used with paper-size and gpu alone"),
        (("paper-size",), "no part has a site: name each with --site NAME=FILE"),
        (("paper-size", "--site", f"a={site}"), "does not say what the images of a are: set data.modality in it."),
        (("paper-size", "--minutes", "0"), "0"),
    ):
        done = CliRunner().invoke(main, ["benchmark", *words, "--out", str(tmp_path / "out")])
        assert done.exit_code == 2
        assert sentence in done.output
    with pytest.raises(SettingsError, match="name each once"):
        plan(seeds=[1, 1])
