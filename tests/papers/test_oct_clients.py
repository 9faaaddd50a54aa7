"""Scans at several numbers of clients, at a size of seconds, on phantoms: one call a federation, one page."""

import pytest

from fedretina.settings.plan import merged
from fedretina.storage import read_json
from fedretina_papers.label_plan import LabelPlan, row_name
from fedretina_papers.oct_clients import POOLED, STUDY, run_clients
from fedretina_papers.oct_clients_page import records_of, rows_of, write_clients_page
from fedretina_papers.plan import preset

TINY = {
    "phases": {
        "pretrain": {"rounds": 1, "training": {"batch_size": 8}},
        "train": {"rounds": 1},
    },
    "images": {"image_size": 32},
    "network": {"weights": {"source": "none"}, "frozen": 1},
    "classes": ["normal", "drusen", "dme", "cnv"],
    "phantom_images": 40,
}


_TWO = {"phases": {"train": {"training": {"epochs": 2, "batch_size": 8}}}}


def tiny(sites, **words):
    settings = preset("o1")
    keep = {"alone": ["imagenet"], "fedavg": ["imagenet", "pretrained"]}
    methods = [{**one, "starts": keep[one["name"]]} for one in settings["methods"] if one["name"] in keep]
    starts = [one for one in settings["starts"] if one["name"] != "longer"]
    more = {
        "starts": starts,
        "methods": methods,
        "seeds": [1, 2],
        "shares": [{"share": 1.0, "settings": _TWO}],
        "sites": dict.fromkeys(sites),
    }
    experiment = merged(settings["experiment"], TINY)
    return LabelPlan.read({**settings, **more, "experiment": experiment, **words})


def test_every_way_and_start_of_the_plan_is_a_run_that_can_be():
    plan = LabelPlan.read(preset("o1"))
    made = plan.fine_tuning({"pretrained": {1: {"file": "encoder.safetensors", "sha256": "0" * 64}}})
    settings = {choice.name: made.experiment_of(choice, 5, {}) for choice in made.rows}
    assert settings["fedavg_pretrained_10"].network.weights.sha256 == "0" * 64  # one encoder serves every seed
    assert settings["fedavg_imagenet_10"].network.weights.source == "package"
    assert settings["bias_imagenet_5"].exchange.personal == "bias"
    networks = {name: one.network.model_dump() for name, one in settings.items() if name.endswith("imagenet_10")}
    same = {key: {network[key] for network in networks.values()} for key in ("encoder",)}
    assert same == {"encoder": {"efficientnet_lite0"}}
    blind = plan.pre_training().experiment_of(plan.pre_training().rows[0], 1, {}).phases[0].rounds
    for share in plan.shares:  # steps over all images without labels, as steps over the labelled ones
        long, short = (settings[f"fedavg_{start}_{share.tag}"].phases[-1] for start in ("longer", "imagenet"))
        assert (long.rounds - short.rounds) * long.training.epochs == round(blind / share.share)
    with pytest.raises(Exception, match="names that differ"):
        tiny(["a", "b"], methods=[{"row": "oct_fedavg"}, {"row": "oct_fedavg"}])


@pytest.mark.slow
def test_two_federations_stand_on_one_page(little_encoder, tmp_path):
    for sites in (["site-1", "site-2"], ["site-1", "site-2", "site-3"]):
        assert run_clients(tiny(sites), tmp_path, 1, lambda told: None) == {}
    folder = tmp_path / "clients-2"
    study, pooled = read_json(folder / STUDY), read_json(folder / POOLED)
    rows, records = rows_of(study, "100"), records_of(study, pooled)
    assert [row.name for row in rows if not row.shared] == [row_name("majority", "100"), "alone_imagenet_100"]
    assert all(len(records.values(row.name, "test.balanced_accuracy")) == 2 for row in rows)
    passes, moved = ({row.name: records.runs.loc[(row.name, 1), one] for row in rows} for one in ("passes", "bytes"))
    assert set(passes.values()) == {0, 2}  # the majority takes none
    assert records.runs.loc[("fedavg_pretrained_100", 1), "blind"] == 1
    assert moved["fedavg_pretrained_100"] > moved["fedavg_imagenet_100"] > moved["alone_imagenet_100"] == 0
    write_clients_page(tmp_path, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "## 2 clients" in page
    assert "## 3 clients" in page
    assert "Not all that was planned" not in page
    trained = sorted((folder / "encoders").rglob("*.json"))
    assert len(trained) == 1
    assert run_clients(tiny(["site-1", "site-2"]), tmp_path, 1, lambda told: pytest.fail(told.words)) == {}
