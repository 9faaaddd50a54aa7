"""A benchmark of two rows over two phantom sites: tuned, run, stored, stopped and taken up again."""

import json

import numpy as np
import pytest
import torch

from fedretina.errors import SettingsError
from fedretina.settings.aggregation import ChoiceSettings
from fedretina_papers.choices import SplitSettings
from fedretina_papers.measure import noised
from fedretina_papers.one_run import sites_of, store
from fedretina_papers.plan import BenchmarkPlan, preset
from fedretina_papers.resplit import resplit
from fedretina_papers.runner import plan_record, required_alike, run_benchmark, validation_auc

SMALL = {
    "name": "small",
    "reference": "feduaa",
    "rows": ["singleset", "feduaa"],
    "seeds": [1],
    "sites": {"site-1": None, "site-2": None},
    "experiment": {
        "phases": [{"name": "train", "rounds": 2}],
        "images": {"image_size": 32},
        "network": {"encoder": "efficientnet_lite0", "head": {"width": 16}},
        "training": {"batch_size": 8, "threads": 1},
        "phantom_images": 32,
        "report": {"draws": 10, "page": False},
    },
    "splits": {"kind": "repeated", "limit": {"train": 24}},
    "noise": [0.0, 0.04],
}


def plan(**words):
    return BenchmarkPlan.read({**SMALL, **words})


def stored(out, name, seed):
    return json.loads((out / "results" / name / f"seed-{seed}.json").read_text())


@pytest.mark.slow
def test_a_benchmark_is_tuned_stored_and_taken_up_again(little_encoder, tmp_path):
    told = []
    rate = {"setting": "training.learning_rate", "values": [0.001, 0.01, 0.1], "factor": 10, "grows": 1}
    mu = {"setting": "correction.mu", "values": [0.01, 0.1, 1.0], "factor": 10, "grows": 0}
    tuned = {"rows": [{"name": "feduaa", "settings": {"correction": {"name": "fedprox"}}}], "grid": [rate, mu]}
    assert run_benchmark(plan(**tuned), tmp_path, 1, told.append) == {}
    record = stored(tmp_path, "feduaa", 1)
    tuning = json.loads((tmp_path / "plan.json").read_text())["tuning"]["feduaa"]
    rates, strengths = tuning["tried"]
    first = {value: rates["tried"][value] for value in ("0.001", "0.01", "0.1")}
    at_end = max(first, key=first.get) != "0.01"
    grew = [(1, 1)] if at_end else []
    assert len(rates["tried"]) == 3 + at_end
    assert [(t.done, t.total) for t in told] == [(1, 3), (2, 3), (3, 3), *grew, (1, 3), (2, 3), (3, 3), (1, 1)]
    best = {one["setting"]: max(one["tried"], key=one["tried"].get) for one in tuning["tried"]}
    assert {name: float(value) for name, value in best.items()} == {
        "training.learning_rate": record["tuned"]["training"]["learning_rate"],
        "correction.mu": record["tuned"]["correction"]["mu"],
    }
    assert record["tuned"] == tuning["chosen"]
    assert set(strengths["tried"]) == {"0.01", "0.1", "1"}
    assert record["bytes_up"] > 0
    for site in record["sites"].values():
        assert site["synthetic"]
        assert [point["variance"] for point in site["noise"]] == [0.0, 0.04]
        assert site["noise"][0]["auc"] == pytest.approx(site["test"]["auc"], abs=1e-9)
        assert len(site["theta_by_round"]) == 2
    answers = np.load(tmp_path / "answers" / "feduaa" / "seed-1" / "site-1.npz")
    assert answers["probabilities"].shape == (record["sites"]["site-1"]["images"]["test"], 5)
    assert not list((tmp_path / "runs").rglob("train-*.safetensors"))

    (tmp_path / "results" / "feduaa" / "seed-1.json").unlink()
    again = []
    assert run_benchmark(plan(**tuned, seeds=[1, 2]), tmp_path, 1, again.append) == {}
    assert [(t.done, t.total) for t in again] == [(1, 2), (2, 2)]
    assert stored(tmp_path, "feduaa", 1)["sites"] == record["sites"]
    assert stored(tmp_path, "feduaa", 2)["sites"]["site-1"]["images"] == record["sites"]["site-1"]["images"]
    assert stored(tmp_path, "feduaa", 2)["sites"]["site-1"]["test"] != record["sites"]["site-1"]["test"]
    with pytest.raises(SettingsError, match="another folder"):
        run_benchmark(plan(rows=["feduaa"], noise=[]), tmp_path, 1, told.append)


@pytest.mark.slow
def test_a_run_that_cannot_be_is_told_and_the_others_go_on(little_encoder, tmp_path):
    broken = {"name": "broken", "row": "feduaa", "settings": {"training": {"batch_size": 4096}}}
    rows = {"rows": [broken, "singleset"], "reference": "singleset"}
    missing = run_benchmark(plan(**rows, noise=[]), tmp_path, 1, lambda told: None)
    assert list(missing) == ["broken, seed 1"]
    assert "fewer than one batch" in missing["broken, seed 1"]
    assert stored(tmp_path, "singleset", 1)["rounds"] == 2
    assert stored(tmp_path, "singleset", 1)["bytes_up"] == 0


@pytest.mark.slow
def test_a_pool_answers_at_each_of_its_members(little_encoder, tmp_path):
    pooled = plan(rows=["centralised", "feduaa"], noise=[])
    record = store(pooled, pooled.rows[0], 1, {}, tmp_path)
    assert set(record["sites"]) == set(SMALL["sites"])
    assert record["loop_only"]


def test_every_seed_has_its_own_split_by_patient_and_every_row_the_same(tmp_path):
    first, again, other = (sites_of(plan(), tmp_path, seed)["site-1"] for seed in (1, 1, 2))
    given = sites_of(plan(splits={"kind": "given"}), tmp_path, 1)["site-1"]
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.split("test").files == again.split("test").files != other.split("test").files
    sides = [set(first.split(name).patients) for name in ("train", "val", "test")]
    assert len(set.union(*sides)) == sum(map(len, sides))
    assert first.counts["train"] <= 24
    pixels = {f: image for n in given.counts for f, image in zip(given.split(n).files, given.split(n).images)}  # noqa: B905
    for name in ("train", "test"):
        part = first.split(name)
        assert all(torch.equal(pixels[file], image) for file, image in zip(part.files, part.images, strict=True))
    assert resplit(given, SplitSettings(), 1) is given


def test_noise_is_the_same_for_every_row_and_as_strong_as_it_says(tmp_path):
    split = sites_of(plan(splits={"kind": "given"}), tmp_path, 1)["site-1"].split("test")
    grey = split._replace(images=torch.full_like(split.images, 128))
    assert noised(grey, 0.0, "a") is grey
    one = noised(grey, 0.01, "a").images
    assert torch.equal(one, noised(grey, 0.01, "a").images)
    assert not torch.equal(one, noised(grey, 0.01, "b").images)
    assert float((one.float() / 255).var()) == pytest.approx(0.01, rel=0.05)


def test_plans_are_checked_before_anything_trains():
    with pytest.raises(SettingsError, match="reference"):
        plan(reference="nobody")
    with pytest.raises(SettingsError, match="list each once"):
        plan(seeds=[1, 1])
    with pytest.raises(SettingsError, match="no row"):
        plan(rows=["feduaa", "no_such_row"])
    with pytest.raises(SettingsError, match="batch_size"):
        plan(grid=[{"setting": "training.batch_size", "values": [0, 8, 16]}])
    with pytest.raises(SettingsError, match="mu"):  # a value that the grid may grow to
        plan(
            reference="fedprox",
            rows=[{"name": "fedprox", "grid": [{"setting": "correction.mu", "values": [1, 10, 100], "factor": 10}]}],
        )
    with pytest.raises(SettingsError, match="variance"):
        plan(noise=[2.0])
    with pytest.raises(SettingsError, match="there is no benchmark"):
        preset("nothing")
    BenchmarkPlan.read(preset("feduaa"))


def test_tuning_judges_the_round_that_a_run_ends_with():
    aucs = {"train": (0.1, 0.6, 0.7), "validate": (0.4,)}
    steps = [{"task": task, "scalars": {"a": {"val_auc": one}}} for task, found in aucs.items() for one in found]
    results = {"steps": steps}
    assert validation_auc(results, ChoiceSettings()) == pytest.approx(0.7)
    assert validation_auc(results, ChoiceSettings(window=2)) == pytest.approx(0.65)
    assert validation_auc(results, ChoiceSettings(model="last")) == pytest.approx(0.4)
    nobody = {"steps": [{"task": "train", "scalars": {"a": {}}}, {"task": "validate", "scalars": {"a": {}}}]}
    assert validation_auc(nobody, ChoiceSettings(model="last")) is None
    assert validation_auc(nobody, ChoiceSettings()) is None


def test_where_a_machine_keeps_its_weights_is_no_part_of_a_plan(tmp_path):
    def asked(file):
        weights = {"source": "file", "file": file, "sha256": "a" * 64}
        return plan(experiment={**SMALL["experiment"], "network": {"encoder": "resnet18", "weights": weights}})

    one, other = (required_alike(asked(file), tmp_path) for file in ("/here/weights.pt", "/there/weights.pt"))
    assert one == other
    assert "a" * 64 in json.dumps(one)
    assert "weights.pt" not in json.dumps(plan_record(asked("/here/weights.pt"), {}))


@pytest.mark.parametrize(
    ("name", "reference"), [("feduaa", "feduaa"), ("oct", "oct_moco_scaffold"), ("fedee", "fedee")]
)
def test_a_plan_says_which_rows_the_others_have_to_beat(name, reference):
    roles = plan_record(BenchmarkPlan.read(preset(name)), {})["roles"]
    assert (roles["majority"], roles["probe"], roles[reference]) == ("alone", "alone", "federated")
    own = {
        row: role for row, role in roles.items() if row.startswith(("singleset", "deep_singleset")) or "_alone" in row
    }
    assert set(own.values()) == {"alone"}
    place = {row: role for row, role in roles.items() if "centralised" in row or row.startswith("one_place")}
    assert set(place.values()) == {"pooled"}
    assert len(set(roles.values())) == 3


def test_a_plan_says_which_rows_stand_apart_and_what_they_vary():
    apart = {name: plan_record(BenchmarkPlan.read(preset(name)), {})["apart"] for name in ("oct", "fedee-activity")}
    assert apart["oct"]["oct_fedavg_without_scanner_b"] == "oct_fedavg"
    assert len(apart["oct"]) == 3
    assert list(apart["fedee-activity"].values()) == ["fedee"] * 12
