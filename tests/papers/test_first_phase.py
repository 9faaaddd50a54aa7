"""The study that joins pre-training without labels to heads from sums, at a size of seconds, on phantoms."""

import shutil

import pytest

from fedretina.errors import SettingsError
from fedretina.loop import run_loop
from fedretina.storage import read_json
from fedretina_papers import first_phase
from fedretina_papers.alone_or_shared import helped
from fedretina_papers.draws import drawn
from fedretina_papers.first_phase import run_first_phase
from fedretina_papers.first_phase_page import missing, records_of, rows_of, write_first_phase_page
from fedretina_papers.first_phase_plan import FirstPhasePlan
from fedretina_papers.plan import preset

SITES = ("site-1", "site-2")


def tiny(**words):
    settings = {
        **preset("p1-oct"),
        "sites": dict.fromkeys(SITES),
        "budgets": [20, 40],
        "draws": 2,
        "minutes": 1e-9,  # a round a call
        "rounds": 2,
        "phantom_images": 60,
        "limit": {"val": 20, "test": 40},
    }
    small = {"images": {"modality": "oct", "image_size": 32}}
    training = {"epochs": 1, "batch_size": 8, "learning_rate": 0.01, "threads": 1}
    blind = {"name": "pretrain", "contrastive": {"momentum": 0.99, "splits": 2}, "training": training}
    settings["pretrain"] = {**small, "network": {"frozen": 1, **_ENCODER}, "phases": [blind]}
    settings["experiment"] = {**small, "classes": ["normal", "drusen", "dme", "cnv"], "network": _ENCODER}
    return FirstPhasePlan.read({**settings, **words})


_ENCODER = {"weights": {"source": "none"}}


@pytest.fixture(scope="module")
def study(tmp_path_factory, little_encoders):
    out = tmp_path_factory.mktemp("study")
    told = []
    run_first_phase(tiny(), out, lambda one: told.append(one.words))
    return out, told


def stored(out):
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted((out / "results").rglob("*.json"))}


def test_each_call_trains_on_and_fits_anew_only_what_stands_on_another_encoder(study):
    out, told = study
    assert {one for one in told if "round" in one} == {
        f"{name}: round 1 of 2" for name in ("alone", "moco", "moco_scaffold")
    }
    first = stored(out)
    run_first_phase(tiny(), out, told.append)
    second = stored(out)
    changed = {path.split("/")[1] for path in first if first[path] != second[path]}
    assert changed == {"alone", "moco", "moco_scaffold"}
    again = []
    run_first_phase(tiny(minutes=0), out, lambda one: again.append(one.words))
    assert all(words.endswith("as stored") for words in again)
    assert stored(out) == second
    with pytest.raises(SettingsError, match="other settings"):
        run_first_phase(tiny(seed=2), out, told.append)


def test_a_head_is_the_one_that_a_run_of_sums_ends_with(study, tmp_path):
    out, _ = study
    plan = tiny()
    experiment = plan.heads({})
    sites = {
        name: drawn(data, 40, 1, plan.limit)
        for name, data in first_phase._sites(plan, experiment, out, lambda *_: None).items()
    }
    phases = [{"name": "sums", "rounds": 1, "sums": {"answer": "federated"}}]
    settings = {**experiment.model_dump(mode="json"), "phases": phases}
    run_loop(type(experiment).model_validate(settings), sites, tmp_path, "run")
    record = read_json(out / "results" / "imagenet" / "budget-40-draw-1.json")["rows"]
    for name in SITES:
        run = read_json(tmp_path / "run" / name / "final" / "figures.json")["verdict"]["test"]["models"]["federated"]
        for figure in ("referable_auc", "accuracy"):  # rare grades have no part in the macro AUC here
            assert record["federated"][name]["test"][figure] == pytest.approx(run[figure], abs=2e-3), figure
    small, large = (drawn(sites[SITES[0]], size, 0, {}).split("train") for size in (10, 20))
    assert set(small.files) < set(large.files)


def test_the_page_says_what_helps_and_what_has_not_run(study, tmp_path):
    out, _ = study
    write_first_phase_page(out, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "hold phantoms" in page
    assert "Not all that was planned" not in page
    told = read_json(out / "study.json")
    rows = rows_of(told)
    assert [row.name for row in rows if not row.shared] == ["majority", "imagenet_own", "alone_own"]
    trained = {name: read_json(out / "encoders" / f"{name}.json") for name in ("alone", "moco", "moco_scaffold")}
    records = records_of(out, told, 40, trained)
    assert all(row.name in records for row in rows)
    assert (
        records.values("moco_both", lambda found: found.runs["bytes"])[0]
        > records.runs.loc[("imagenet_both", 0), "bytes"]
        > 0
    )
    shutil.copytree(out / "results", tmp_path / "results")
    (tmp_path / "results" / "moco" / "budget-40-draw-1.json").unlink()
    fewer = records_of(tmp_path, told, 40, trained)
    assert all(set(fewer.sites.loc[row.name].index.get_level_values("seed")) == {0} for row in rows)
    assert missing(told, rows, {40: fewer}) == ["40 images a site: every row (1 of 2 draws)"]
    older = {**trained, "moco": {**trained["moco"], "files": {name: {"sha256": "0"} for name in SITES}}}
    lines = helped(rows, records_of(out, told, 40, older), "test.auc")
    assert sum("not run" in line for line in lines) == 3


def test_a_plan_is_checked_before_anything_trains():
    for words, match in (
        ({"budgets": [20, 10]}, "ascending"),
        ({"encoders": [{"name": "moco", "title": "x", "who": "sites"}]}, "nobody pre-trains the first"),
        ({"pretrain": {"network": {"frozen": "all"}}}, "trains the encoder"),
    ):
        with pytest.raises(SettingsError, match=match):
            tiny(**words)
