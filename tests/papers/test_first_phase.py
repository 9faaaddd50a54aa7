"""Encoders that sites pre-train without labels, and a block that stands heads on them, at a size of seconds."""

import pytest

from fedretina.data.site_data import load_site_data
from fedretina.errors import FedretinaError, SettingsError, StateError
from fedretina.settings.plan import merged
from fedretina.settings.site import SiteDataSettings
from fedretina.storage import read_json, write_json
from fedretina_papers.blocks import runs
from fedretina_papers.blocks.page import write_block_page
from fedretina_papers.blocks.plan import BlockPlan, images_of
from fedretina_papers.blocks.study import run_block
from fedretina_papers.command import _encoders
from fedretina_papers.first_phase import _go_on_from, as_clients, run_first_phase, write_first_phase_page
from fedretina_papers.first_phase_plan import FirstPhasePlan
from fedretina_papers.kinds import kind_of
from fedretina_papers.paper_size.limits import Limits
from fedretina_papers.plan import preset
from fedretina_papers.pretraining import given_encoders
from fedretina_papers.studies.block import _before

SITES = ("site-1", "site-2")
_START = {"weights": {"source": "none"}}
_KEPT = ("alone", "moco", "pooled")


def tiny(**words):
    training = {"epochs": 1, "batch_size": 8, "learning_rate": 0.01, "threads": 1}
    blind = {"name": "pretrain", "contrastive": {"momentum": 0.99, "splits": 2}, "training": training}
    settings = {
        **preset("p1-oct"),
        "sites": dict.fromkeys(SITES),
        "minutes": 1e-9,  # a round a call
        "rounds": 2,
        "phantom_images": 40,
        "pretrain": {
            "images": {"modality": "oct", "image_size": 32},
            "network": {"frozen": 1, **_START},
            "phases": [blind],
        },
    }
    settings["encoders"] = [one for one in settings["encoders"] if one["name"] in _KEPT]
    return FirstPhasePlan.read({**settings, **words})


@pytest.fixture(scope="module")
def study(tmp_path_factory, little_encoders):
    """A round of each encoder, and then another of one."""
    out = tmp_path_factory.mktemp("study")
    told = []
    run_first_phase(tiny(), out, 1, lambda one: told.append(one.words))
    first = given_encoders(out)
    run_first_phase(tiny(encoders=tiny().encoders[1:]), out, 1, lambda one: told.append(one.words))
    return out, told, first


def block(encoders, **words):
    """P1's rows at two phantom sites, without tuning."""
    settings = preset("p1")
    grades = ["normal", "drusen", "dme", "cnv"]
    rows = [
        merged(row, {"tune": []} | ({"settings": {"classes": grades}} if "classes" in row.get("settings", {}) else {}))
        for row in settings["rows"]
        if row.get("start", "moco") in _KEPT
    ]
    small = {
        "starts": [one for one in settings["starts"] if one["name"] in _KEPT],
        "cases": [{"name": "two", "title": "Two sites", "hospitals": dict.fromkeys(SITES, 1)}],
        "sizes": [8, "50%"],
        "draws": 2,
        "least": 2,
        "resamples": 5,
        "tuning_size": 8,
        "rows": rows,
        "pairs": [],
        "sites": dict.fromkeys(SITES),
        "encoders": encoders,
        "experiment": merged(
            settings["experiment"],
            {
                "images": {"modality": "oct", "image_size": 32},
                "network": _START,
                "phases": [{"name": "train", "rounds": 1}],
            },
        ),
    }
    return BlockPlan.read({**settings, **small, **words})


def test_each_call_trains_on(study, tmp_path):
    out, told, first = study
    together = {f"{name}: round {at} of 2" for name in ("moco", "pooled") for at in (1, 2)}
    assert set(told) == {"alone: round 1 of 2", *together}
    second = given_encoders(out)
    assert [second[name]["passes"] for name in ("alone", "moco", "pooled")] == [1, 2, 2]
    assert [len({one["sha256"] for one in second[name]["files"].values()}) for name in second] == [2, 1, 1]
    assert (second["pooled"]["sent"], second["pooled"]["received"]) == (0, 0)
    assert first["moco"]["files"]["site-1"]["sha256"] != second["moco"]["files"]["site-1"]["sha256"]
    assert second["moco"]["sent"] > second["alone"]["sent"] == 0
    again = []
    run_first_phase(tiny(minutes=0), out, 1, again.append)
    assert not again
    write_first_phase_page(out, tmp_path / "page.md")
    assert "| pre-trained by all sites, MoCo | 2 of 2 | 2 |" in (tmp_path / "page.md").read_text()
    with pytest.raises(SettingsError, match="other settings"):
        run_first_phase(tiny(seed=2), out, 1, again.append)
    with pytest.raises(SettingsError, match="trains the encoder"):
        tiny(pretrain={"network": {"frozen": "all"}})


def test_a_pre_training_ends_when_it_is_enough(little_encoders, tmp_path):
    (moco,) = [{**one, "enough": 1} for one in tiny().model_dump()["encoders"] if one["name"] == "moco"]
    for _ in range(2):
        run_first_phase(tiny(encoders=[moco], minutes=100), tmp_path, 1, lambda told: None)
        assert given_encoders(tmp_path)["moco"]["passes"] == 1
    run_first_phase(tiny(encoders=[{**moco, "enough": 2}], minutes=100), tmp_path, 1, lambda told: None)
    assert given_encoders(tmp_path)["moco"]["passes"] == 2


def test_a_killed_pre_training_with_more_rounds_than_are_enough_ends(little_encoders, tmp_path):
    """Killed behind the second round's write, before what it had become was told."""
    (moco,) = [{**one, "enough": 2} for one in tiny().model_dump()["encoders"] if one["name"] == "moco"]
    for _ in range(2):
        run_first_phase(tiny(encoders=[moco], rounds=5), tmp_path, 1, lambda told: None)
    (tmp_path / "pretraining" / "moco" / "pretrained.json").unlink()
    run_first_phase(tiny(encoders=[{**moco, "enough": 1}], rounds=5, minutes=100), tmp_path, 1, lambda told: None)
    assert given_encoders(tmp_path)["moco"]["passes"] == 2


def test_an_encoder_goes_on_after_a_shorter_one_to_the_bits_of_one_go(little_encoders, tmp_path):
    (moco,) = (one.model_dump() for one in tiny().encoders if one.name == "moco")
    whole, told = {"rounds": 5, "minutes": 100}, []
    chain = [
        {**moco, "enough": 1},
        {**moco, "name": "longer", "enough": 2, "after": "moco"},
        {**moco, "name": "longest", "enough": 3, "after": "longer"},
    ]
    run_first_phase(tiny(encoders=chain, **whole), tmp_path / "chain", 1, lambda one: told.append(one.words))
    assert told == ["moco: round 1 of 1", "longer: round 2 of 2", "longest: round 3 of 3"]  # no round twice
    in_one_go = tiny(encoders=[{**moco, "enough": 3}], **whole)
    run_first_phase(in_one_go, tmp_path / "whole", 1, lambda told: None)
    found, (straight,) = given_encoders(tmp_path / "chain"), given_encoders(tmp_path / "whole").values()
    assert _sha(found["longest"]) == _sha(straight)
    assert (found["longest"]["passes"], found["longest"]["sent"]) == (3, straight["sent"])
    assert found["longest"]["losses"] == straight["losses"]
    assert found["longest"]["minutes"] >= found["longer"]["minutes"] >= found["moco"]["minutes"] > 0


def test_an_encoder_goes_on_from_a_shorter_one_that_is_not_done_and_never_from_fewer_rounds(little_encoders, tmp_path):
    (moco,) = (one.model_dump() for one in tiny().encoders if one.name == "moco")
    chain = [{**moco, "enough": 3}, {**moco, "name": "longer", "enough": 5, "after": "moco"}]
    rounds, told = [], []
    for _ in range(3):  # a round a call and encoder
        run_first_phase(tiny(encoders=chain, rounds=5), tmp_path, 1, lambda one: told.append(one.words))
        rounds.append([one["passes"] for one in given_encoders(tmp_path).values()])
    assert rounds == [[2, 1], [3, 2], [4, 3]]  # the longer one, by name before the other
    assert len(told) == 6


def test_a_pre_training_that_cannot_be_copied_is_told_and_leaves_what_was_there(tmp_path):
    (tmp_path / "longer").mkdir()
    (tmp_path / "longer" / "begun.json").write_text("{}")
    with pytest.raises(StateError, match="make room, and call again"):
        _go_on_from(tmp_path / "none", tmp_path / "longer")
    assert [path.name for path in (tmp_path / "longer").iterdir()] == ["begun.json"]


def test_sites_that_cannot_be_read_leave_nothing_that_another_plan_could_spoil(tmp_path):
    with pytest.raises(FedretinaError):
        run_first_phase(tiny(sites=dict.fromkeys(SITES, tmp_path / "none.yaml")), tmp_path / "out", 1, lambda one: None)
    assert not (tmp_path / "out" / "pretraining").exists()


def test_a_block_pre_trains_those_that_its_encoders_go_on_after(tmp_path):
    plan = BlockPlan.read({**preset("p1"), "sites": dict.fromkeys(preset("p1")["cases"][0]["hospitals"])})
    rows = tuple(row for row in plan.rows if row.start in ("", "moco_longest"))
    before = _before(plan.model_copy(update={"rows": rows}))
    assert [one.name for one in before.encoders] == ["moco", "moco_longer", "moco_longest"]


def test_a_copy_of_a_shorter_pre_training_that_was_cut_off_is_made_again(little_encoders, tmp_path):
    (moco,) = (one.model_dump() for one in tiny().encoders if one.name == "moco")
    chain = tiny(encoders=[{**moco, "enough": 1}, {**moco, "name": "longer", "after": "moco"}])
    cut = tmp_path / "pretraining" / ".longer"
    (cut / "run").mkdir(parents=True)
    (cut / "run" / "half").touch()
    run_first_phase(chain, tmp_path, 1, lambda told: None)
    assert given_encoders(tmp_path)["longer"]["passes"] == 2
    assert not cut.exists()
    assert not (tmp_path / "pretraining" / "longer" / "run" / "half").exists()


def test_an_encoder_goes_on_after_none_that_trained_otherwise():
    moco, pooled = (one for one in tiny().encoders if one.name in ("moco", "pooled"))
    for first, second in (
        (pooled, {"after": "pooled"}),
        (moco, {"after": "moco", "seed": 3}),
        (moco, {"after": "none"}),
        (moco, {"after": "moco", "enough": 1}),
    ):
        with pytest.raises(SettingsError, match="name one before it with the same who, settings, seed and clients"):
            tiny(encoders=[first, moco.model_copy(update={"name": "longer", **second})])


def _sha(encoder):
    return {site: one["sha256"] for site, one in encoder["files"].items()}


def test_sites_that_pre_train_together_may_be_dealt_to_clients(little_encoders, tmp_path):
    (moco,) = [one for one in tiny().encoders if one.name == "moco"]
    run_first_phase(tiny(encoders=[moco], clients={"site-1": 2}, phantom_images=100), tmp_path, 1, lambda told: None)
    found = given_encoders(tmp_path)["moco"]["files"]
    assert sorted(found) == ["site-1-1", "site-1-2", "site-2"]
    with pytest.raises(SettingsError, match="dealt out of site-9: name a --site"):
        tiny(clients={"site-9": 2})
    others = moco.model_copy(update={"name": "moco_other", "clients": {"site-2": 2}})
    run_first_phase(
        tiny(encoders=[others], clients={"site-1": 2}, phantom_images=100), tmp_path / "other", 1, lambda told: None
    )
    assert sorted(given_encoders(tmp_path / "other")["moco_other"]["files"]) == ["site-1", "site-2-1", "site-2-2"]
    again = {"encoders": [others.model_copy(update={"clients": {"site-1": 2}})], "phantom_images": 100}
    with pytest.raises(SettingsError, match="moco_other in other was begun with other settings"):
        run_first_phase(tiny(clients={"site-1": 2}, **again), tmp_path / "other", 1, lambda told: None)
    with pytest.raises(SettingsError, match="dealt out of site-9: name a --site"):
        tiny(encoders=[moco.model_copy(update={"clients": {"site-9": 2}})])


def test_dealt_clients_hold_each_training_image_once_and_no_patient_twice(tmp_path):
    images = tiny().pretraining(tiny().encoders[0]).images
    data = load_site_data("site-1", SiteDataSettings(phantom_images=100), images, 1, tmp_path)
    dealt = as_clients({"site-1": data, "site-2": data}, {"site-1": 3}, 1)
    assert sorted(dealt) == ["site-1-1", "site-1-2", "site-1-3", "site-2"]
    assert dealt["site-2"] is data
    parts = [dealt[f"site-1-{at}"].split("pretrain") for at in (1, 2, 3)]
    assert sorted(file for part in parts for file in part.files) == sorted(data.split("pretrain").files)
    assert sum(len(set(part.patients)) for part in parts) == len(set(data.split("pretrain").patients))
    assert all(sum(dealt[f"site-1-{at}"].graded.values()) == 0 for at in (1, 2, 3))  # no label goes along


def test_phantoms_stand_beside_no_real_sites(tmp_path):
    sites = {"site-1": None, "real": tmp_path / "site.yaml"}
    with pytest.raises(SettingsError, match="site-1 would be phantoms beside real sites"):
        tiny(sites=sites)


def test_a_block_pre_trains_its_encoders_first_where_none_are_given(little_encoders, tmp_path):
    settings = block({}, sizes=[8], draws=1).model_dump()
    pretrain = tiny().model_dump(include={"pretrain", "rounds", "phantom_images", "encoders"})
    settings["first"] = {"preset": "p1-oct", **pretrain, "seed": 4}
    (moco,) = [one for one in pretrain["encoders"] if one["name"] == "moco"]
    prepared = kind_of(settings["paper"]).prepare(settings, Limits())
    told = []
    assert prepared.run(tmp_path, 1, lambda one: told.append(one.words), lambda *said: None) == {}
    assert "pooled: round 2 of 2" in told
    (record,) = (tmp_path / "results" / "two" / "8" / "moco_own").glob("*.json")
    assert read_json(record)["passes"] == 2
    before = len(told)
    assert prepared.run(tmp_path, 1, lambda one: told.append(one.words), lambda *said: None) == {}
    assert len(told) == before  # nothing is left to do

    (tmp_path / "first_phase").rename(tmp_path / "elsewhere")
    with pytest.raises(SettingsError, match="give --encoders again"):
        prepared.run(tmp_path, 1, lambda one: told.append(one.words), lambda *said: None)
    assert not (tmp_path / "first_phase").exists()
    fewer = {"preset": "p1-oct", "encoders": [moco]}
    for first, said in (({}, "give the folder"), (fewer, "no encoder alone, pooled")):
        with pytest.raises(SettingsError, match=said):
            kind_of(settings["paper"]).prepare({**settings, "first": first}, Limits()).run(
                tmp_path / "other", 1, lambda one: None, lambda *said: None
            )


def test_images_of_all_sites_lie_in_one_place_where_no_label_is_read(little_encoders, tmp_path):
    """Sites whose grades differ too: pre-training reads none."""
    sites = ("site-1", "site-2", "site-3")
    in_place = [one for one in tiny().encoders if one.who == "pooled"]
    pretrain = merged(tiny().pretrain, {"images": {"modality": "fundus"}})
    run_first_phase(
        tiny(sites=dict.fromkeys(sites), encoders=in_place, pretrain=pretrain), tmp_path, 1, lambda told: None
    )
    found = given_encoders(tmp_path)["pooled"]
    assert sorted(found["files"]) == sorted(sites)
    assert len({one["sha256"] for one in found["files"].values()}) == 1


def test_a_blocks_rows_stand_on_encoders_that_were_pretrained(study, tmp_path):
    out, _, first = study
    encoders = given_encoders(out)
    told = []
    assert run_block(block(encoders), tmp_path / "block", 1, lambda one: told.append(one.words)) == {}

    def record(row, size):
        return read_json(tmp_path / "block" / "results" / "two" / f"{size}" / row / "draw-0.json")

    assert record("moco_pooled", 8)["sites"] != record("pooled_pooled", 8)["sites"]
    assert (record("pooled_pooled", 8)["passes"], record("pooled_pooled", 8)["bytes_up"]) == (3, 0)
    rows = [record(name, 8) for name in ("probe", "alone_own", "moco_own")]
    assert len({str(one["sites"]["site-1"]["test"]) for one in rows}) == 3  # three encoders
    assert len({str(one["sites"]["site-1"]["images"]) for one in rows}) == 1  # the same images
    assert [one["passes"] for one in rows] == [0, 1, 2]
    assert rows[2]["bytes_up"] == encoders["moco"]["sent"]
    assert rows[1]["bytes_up"] == 0
    half = record("probe", "50%")["sites"]["site-1"]["images"]["train"]
    assert half > rows[0]["sites"]["site-1"]["images"]["train"] >= 8
    write_block_page(tmp_path / "block", tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "Pre-trained by all sites, MoCo v2 and FedAvg: 2 passes" in page
    assert "50 % of each hospital's training images" in page
    assert str(out) not in (tmp_path / "block" / "plan.json").read_text()  # digests, no path of this machine

    with pytest.raises(SettingsError, match="encoder moco"):
        run_block(block(first), tmp_path / "block", 1, told.append)
    with pytest.raises(SettingsError, match="as --encoders"):
        run_block(block({}), tmp_path / "other", 1, told.append)
    with pytest.raises(SettingsError, match="none of the plan's starts"):
        block({}, starts=[])


def test_in_a_case_another_encoder_may_stand_in_the_place_of_one(study, tmp_path):
    """As many clients pre-train as train then."""
    out = study[0]
    encoders = given_encoders(out)
    encoders["moco_other"] = encoders["pooled"]
    two = block({}).cases[0].model_dump()
    other = {"name": "moco_other", "title": "Pre-trained by others", "of": "moco", "case": "other"}
    starts = [one.model_dump() for one in block({}).starts]
    kept = ("majority", "probe", "singleset", "alone_own", "fedavg", "pooled", "moco_own", "moco_sums")
    few = {
        "rows": [row for row in block({}).model_dump()["rows"] if row["name"] in kept],
        "cases": [two, {**two, "name": "other"}],
        "starts": [*starts, other],
        "sizes": [8],
        "draws": 1,
        "reference": "",
    }
    plan = block(encoders, **few)
    assert plan.stood_on == {"alone", "moco", "moco_other"}
    assert run_block(plan, tmp_path / "block", 1, lambda one: None) == {}

    def record(case, row):
        return read_json(tmp_path / "block" / "results" / case / "8" / row / "draw-0.json")

    assert record("two", "alone_own")["sites"] == record("other", "alone_own")["sites"]
    for row in ("moco_own", "moco_sums"):
        assert record("two", row)["sites"] != record("other", row)["sites"]
        assert record("two", row)["bytes_up"] - record("other", row)["bytes_up"] == encoders["moco"]["sent"] > 0
    write_block_page(tmp_path / "block", tmp_path / "page.md")
    assert "Pre-trained by others: 2 passes" in (tmp_path / "page.md").read_text()

    with pytest.raises(SettingsError, match=r"other settings \(starts\)"):
        run_block(block(encoders, **few | {"starts": starts}), tmp_path / "block", 1, lambda one: None)
    third = {"cases": [*few["cases"], {**two, "name": "third"}], "starts": [*few["starts"], {**other, "case": "third"}]}
    assert run_block(block(encoders, **few | third), tmp_path / "block", 1, lambda one: None) == {}  # one more case
    assert record("third", "moco_own")["sites"] == record("other", "moco_own")["sites"]
    like = block(encoders, **few | third | {"cases": [two, {**two, "name": "other", "alpha": 0.5}, third["cases"][2]]})
    with pytest.raises(SettingsError, match=r"other settings \(case other\)"):
        run_block(like, tmp_path / "block", 1, lambda one: None)
    fewer = block(encoders, **few | third | {"cases": third["cases"][1:]})  # it would come back as another
    with pytest.raises(SettingsError, match=r"other settings \(case two\)"):
        run_block(fewer, tmp_path / "block", 1, lambda one: None)
    for wrong in ({"case": "third"}, {"of": "fourth"}, {"of": ""}):
        with pytest.raises(SettingsError, match="one of the block's cases"):
            block(encoders, **few | {"starts": [*starts, other | wrong]})
    with pytest.raises(SettingsError, match="at most one start for each"):
        block(encoders, **few | {"starts": [*starts, other, other | {"name": "moco_third"}]})
    with pytest.raises(SettingsError, match="no encoder moco_other"):
        _encoders(plan.model_dump(), [out])


def test_networks_that_train_whole_begin_from_encoders_that_were_pretrained(study, tmp_path, monkeypatch):
    encoders, begun = given_encoders(study[0]), {}
    real = runs.trained

    def trained(experiment, data, folder):
        begun.setdefault(experiment.row, {}).update(dict.fromkeys(data, experiment.network.weights.sha256))
        return real(experiment, data, folder)

    monkeypatch.setattr(runs, "trained", trained)
    whole = {"frozen": "nothing", "frozen_cache": "strict", "frozen_statistics": True}
    shared = {"row": "fedavg", "classes": ["normal", "drusen", "dme", "cnv"], "exchange": {"personal": "nothing"}}
    mine = {"role": "alone", "kind": "trained", "settings": {"network": whole}}
    ours = {"role": "federated", "kind": "trained", "twin": "mine", "settings": {**shared, "network": whole}}
    in_one = {"role": "pooled", "kind": "pooled", "of": "ours_moco"}
    more = [
        {"name": "mine", "title": "Whole", **mine},
        {"name": "mine_alone", "title": "Whole, from its site's", "start": "alone", **mine},
        {
            "name": "mine_even",
            "title": "As if even",
            "role": "alone",
            "kind": "even",
            "of": "mine_alone",
            "start": "alone",
        },
        {"name": "ours_moco", "title": "Whole, from all sites'", "start": "moco", **ours},
        {"name": "one_moco", "title": "In one place", "start": "moco", **in_one},
    ]
    kept = ("majority", "probe", "singleset", "fedavg", "pooled")
    rows = [row for row in block({}).model_dump()["rows"] if row["name"] in kept]
    few = {"rows": rows + more, "sizes": [16], "draws": 1, "reference": ""}
    told = []
    assert run_block(block(encoders, **few), tmp_path / "block", 1, lambda one: told.append(one.words)) == {}

    sums = {name: {site: one["sha256"] for site, one in held["files"].items()} for name, held in encoders.items()}
    assert begun == {"singleset": sums["alone"], "fedavg": sums["moco"]}  # `mine`, which is first, has none
    results = tmp_path / "block" / "results" / "two" / "16"
    found = {row["name"]: read_json(results / row["name"] / "draw-0.json") for row in more}
    assert len({str(one["sites"]) for one in found.values()}) == len(more)
    assert [one["passes"] for one in found.values()] == [1, 2, 2, 3, 3]
    assert found["one_moco"]["bytes_up"] == encoders["moco"]["sent"] < found["ours_moco"]["bytes_up"]

    shared_from_each = [{**row, "start": "alone"} if row["name"] == "ours_moco" else row for row in rows + more]
    refused = block(encoders, **few | {"rows": shared_from_each})
    assert run_block(refused, tmp_path / "refused", 1, lambda one: told.append(one.words)) != {}
    assert any("differs from set to set" in words for words in told)


def test_an_encoder_of_each_site_serves_no_other(tmp_path):
    held = {"files": {"a": {"file": "a", "sha256": "0" * 64}, "b": {"file": "b", "sha256": "1" * 64}}}
    told = {"bytes": {"up": 6, "down": 4}, "losses": [2.0], "minutes": 1.0, "of": 1, "passes": 1, "rounds": 1}
    write_json(tmp_path / "encoders" / "alone.json", {**held, **told})
    plan = block(given_encoders(tmp_path))
    with pytest.raises(SettingsError, match="none for c"):
        plan.encoders["alone"].weights("c")
    assert (plan.encoders["alone"].sent, plan.encoders["alone"].received) == (3, 2)
    assert [images_of(size, 54) for size in (8, "5%", "all")] == [8, 3, 54]


def test_of_several_folders_the_first_that_fits_the_sites_gives_an_encoder(tmp_path):
    told = {"bytes": {"up": 0, "down": 0}, "losses": [2.0], "minutes": 1.0, "of": 1, "passes": 1, "rounds": 1}
    for folder, sites in (("clients", "ab"), ("sets", "cd")):
        own = {"files": {site: {"file": site, "sha256": str(at) * 64} for at, site in enumerate(sites)}}
        same = {"files": {site: {"file": folder, "sha256": "9" * 64} for site in sites}}
        write_json(tmp_path / folder / "encoders" / "alone.json", {**own, **told})
        write_json(tmp_path / folder / "encoders" / "moco.json", {**same, **told})
    settings = {"name": "o1", "rows": [{"start": "alone"}, {"start": "moco"}], "sites": {"c": None, "d": None}}
    held = _encoders(settings, [tmp_path / "clients", tmp_path / "sets"])
    assert [sorted(held[name]["files"]) for name in ("alone", "moco")] == [["c", "d"], ["a", "b"]]
    folders = [tmp_path / "clients", tmp_path / "sets"]
    with pytest.raises(SettingsError, match="no encoder pooled in clients and sets"):
        _encoders({**settings, "rows": [{"start": "pooled"}]}, folders)
    with pytest.raises(SettingsError, match="alone in clients are of other sites"):
        _encoders({**settings, "rows": [{"start": "alone"}]}, folders[:1])
    assert list(_encoders({**settings, "rows": [{"start": "moco"}, {"name": "probe"}]}, folders)) == ["moco"]
