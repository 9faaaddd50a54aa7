import copy
import json

import pytest
import torch

from fedretina import storage
from fedretina.aggregation.coordinator import Coordinator
from fedretina.analytic.distance import directions
from fedretina.data.augment import augment
from fedretina.errors import QuorumError, RefusedError, SettingsError, StateError, TrainingError
from fedretina.exchange.payload import tensors_digest
from fedretina.gate.gate import Gate as EntranceGate
from fedretina.local.site import Site
from fedretina.local.site_state import read_history
from fedretina.loop import run_loop
from fedretina.losses.objective import Clock, build_objective
from fedretina.networks.build import build_network, build_on_meta
from fedretina.networks.gate import Gate
from fedretina.rows import ROWS
from fedretina.seeds import generator
from killed import killed_at_every_write
from power_cut import survives_power_cuts
from printed import blocks


def figures(results):
    """What must not depend on where a run was interrupted: everything but its name."""
    return {key: value for key, value in results.items() if key != "run"}


# One of each structure: a model for each site, for all, tuned; and what travels beside the model or in its place.
EVERYDAY = ("centralised", "ditto", "scaffold", "mdt", "fedap", "feduaa", "oct_moco_feduaa", "fedee", "analytic")
OTHERS = [pytest.param(row, marks=pytest.mark.slow) for row in ROWS if row not in EVERYDAY]


@pytest.mark.parametrize("row", [*EVERYDAY, *OTHERS])
def test_every_row_runs_to_its_end(row, tiny, phantoms, tmp_path):
    listed = ROWS[row].settings.get("phases", [{"name": "train"}])
    short = {"training": {"epochs": 1, "batch_size": 8}}
    phases = [{"name": one["name"], "rounds": 1, **(short if "training" in one else {})} for one in listed]
    experiment = tiny(row=row, phases=phases, verdict="own")
    # What is sent once is measured among three sites at least. Of two, weights of a model per site add up to 1 as well.
    three = experiment.aggregation.personal or experiment.network.calibrator or experiment.sums is not None
    names = ("site-1", "site-2", "site-3") if three else ("site-1", "site-2")
    results = run_loop(experiment, phantoms(experiment, *names), tmp_path, "r")
    agreed = {"oct": 4, "dermoscopy": 8, "heart_sound": 2, "activity": 8}.get(experiment.images.modality)
    own = [5, 4, 6][: len(names)] if agreed is None else [agreed] * len(names)
    grades = [agreed] if agreed and experiment.pooled else own  # equal grades make one pool
    assert [results["sites"][site]["grades"] for site in sorted(results["sites"])] == grades
    weights = [entry["weight"] for entry in results["sites"].values()]
    # With a model per site, each weight is the site's own share of its own model.
    assert sum(weights) == pytest.approx(1.5 if experiment.aggregation.personal else 1)
    assert results["chosen"] == ("train-0000" if experiment.sums is None else "sums-0000")
    # No honest update comes near what is refused as out of all proportion (aggregation.proportion, 300).
    assert all(step["refused"] == {} for step in results["steps"])
    measured = [value for step in results["steps"] for value in step.get("proportion", {}).values()]
    assert bool(measured) == (experiment.exchange.personal != "everything" or experiment.sums is not None)
    assert max(measured, default=0) < 30
    for site in results["sites"]:
        card = json.loads((tmp_path / "r" / site / "final" / "card.json").read_text())
        assert card["synthetic"] is True
        assert "not a medical device" in card["notice"]
        gate = EntranceGate.read(tmp_path / "r" / site / "final", card["look"]["gate"], None)
        assert gate.record["model"] == card["model_digest"]
        assert gate.measures == ("features.weight" in gate.tensors)
        model, _ = storage.read_tensors(tmp_path / "r" / site / "final" / "model.safetensors")
        net = build_on_meta(experiment.network, int(results["sites"][site]["grades"]))
        features = net.encoder.features
        net.gate = None if experiment.evaluation.gate is None else Gate(features, directions(features))
        whole = net.state_dict()
        assert {key: model[key].shape for key in model} == {
            key: tensor.shape for key, tensor in whole.items() if not key.startswith("contrast.")
        }


# What never reaches the wire, so that the simulator need not show it (tests/flare/test_covering_rows.py).
AWAY_FROM_THE_WIRE = {
    "stretches": {
        "row": "scaffold",
        "sampling": {"fraction": 0.67},
        "network": {"frozen": 2},
        "augment": {"rotate_degrees": 0, "quarter_turns": True},
        "training": {
            "optimizer": "adam",
            "learning_rate": 0.001,
            "schedule": "cosine",
            "stretches": [{"train": "head", "epochs": 1}, {"train": "encoder", "epochs": 1}],
        },
    },
    "recipe": {"row": "fedee_tweu", "recipe": "small_sites", "training": {"learning_rate": 0.001}},
    "evidence": {
        "row": "moon_projected",
        "grades": 5,
        "network": {"head": {"layout": "linear"}},
        "objective": {"name": "evidential"},
        "exchange": {"personal": "nothing", "batchnorm": "local_stats"},
        "evaluation": {"estimator": "evidence", "auc_input": "belief"},
    },
    "transformer": {
        "row": "feddyn",
        "network": {"encoder": "vit_small"},
        "exchange": {"personal": "head", "batchnorm": "none"},
        "objective": {"name": "tweu"},
        "theta": {"source": "validation"},
        "aggregation": {"rule": "uaw"},
        "choice": {"window": 2},
    },
    "drift_in_two_phases": {
        "row": "feddc",
        "phases": [{"name": "warm", "rounds": 1}, {"name": "train", "rounds": 2}],
        "training": {"momentum": 0.9, "clip_norm": 1.0},
    },
    # The model that travels under one memory, the site's own under another, and the server's under a third.
    "two_models": {
        "row": "ditto",
        "exchange": {"batchnorm": "local_stats"},
        "correction": {"name": "fedprox"},
        "aggregation": {"optimiser": {"name": "fedadam", "rate": 0.001}},
        "tune": {"learning_rate": 0.002},
        "training": {"optimizer": "adam", "learning_rate": 0.001, "schedule": "cosine", "optimizer_state": "keep"},
    },
    "passes": {
        "row": "fedee",
        "grades": 5,
        "exchange": {"personal": "exits"},
        "network": {"exits": {"width": 8}, "dropout": {"rate": 0.1}},
        "evaluation": {"passes": 2},
        "training": {"optimizer": "adam", "learning_rate": 0.001, "optimizer_state": "keep"},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", AWAY_FROM_THE_WIRE)
def test_begun_anew_in_every_step_a_run_of_other_settings_ends_with_the_same_bits(name, tiny, phantoms, tmp_path):
    experiment = tiny(**AWAY_FROM_THE_WIRE[name])
    data = phantoms(experiment, "site-1", "site-4", "site-5")
    expected = run_loop(experiment, data, tmp_path, "a")
    while not (tmp_path / "b" / "server" / "results.json").exists():
        coordinator = Coordinator(experiment, "b", tmp_path / "b" / "server")
        coordinator.begin(data)
        for site in coordinator.asked:
            host = Site(experiment, data[site], tmp_path / "b" / site)
            coordinator.accept(site, host.handle(coordinator.order(site), coordinator.down(site)))
        coordinator.close()
    assert figures(storage.read_json(tmp_path / "b" / "server" / "results.json")) == figures(expected)
    assert set(expected["sites"]) == set(data)


def test_the_same_run_gives_the_same_bits(tiny, phantoms, tmp_path):
    experiment = tiny()
    data = phantoms(experiment)
    first, second = (run_loop(experiment, data, tmp_path, name) for name in ("a", "b"))
    assert figures(first) == figures(second)
    other = tiny(seed=4)
    assert run_loop(other, phantoms(other), tmp_path, "c")["model_digest"] != first["model_digest"]


def test_the_same_run_with_two_threads_gives_the_same_bits(tiny, phantoms, tmp_path):
    experiment = tiny(training={"threads": 2}, phases=[{"name": "train", "rounds": 1}])
    data = phantoms(experiment, "site-1")
    first, second = (run_loop(experiment, data, tmp_path, name) for name in ("a", "b"))
    assert figures(first) == figures(second)


def test_the_order_in_which_sites_answer_changes_nothing(tiny, phantoms, tmp_path):
    """Nor does it what lies on the disk where the second of them has not been heard yet, which a page shows."""
    experiment = tiny()
    data = phantoms(experiment, "site-1", "site-2")
    expected = run_loop(experiment, data, tmp_path, "a")
    coordinator = Coordinator(experiment, "b", tmp_path / "b" / "server")
    hosts = {name: Site(experiment, data[name], tmp_path / "b" / name) for name in data}
    while coordinator.done < len(coordinator.plan):
        coordinator.begin(hosts)
        for name in sorted(hosts, reverse=coordinator.done % 2 == 0):
            answer = hosts[name].handle(coordinator.order(name), coordinator.down())
            if coordinator.plan[coordinator.done].name == "train-0001" and name == "site-2":
                as_the_page_shows(tmp_path / "b")
            coordinator.accept(name, answer)
        coordinator.close()
    got = storage.read_json(tmp_path / "b" / "server" / "results.json")
    assert figures(got) == figures(expected)


def as_the_page_shows(run):
    """The files are those of the page, with what it says is in them; ledgers are written by the filter in FLARE."""
    (block,) = (text for text in blocks("docs/one_round.md") if text.startswith("server/run.json"))
    named = {line.split()[0]: line.partition(" ")[2].strip() for line in block.splitlines()}
    files = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file() and path.name != "lock"}
    assert files == {name for name in named if not name.endswith("ledger.jsonl")}
    for name, inside in named.items():
        if inside.startswith('"'):
            assert storage.read_json(run / name).items() >= json.loads(f"{{{inside}}}").items()


def test_one_site_is_plain_sgd(tiny, phantoms, tmp_path):
    experiment = tiny(phases=[{"name": "train", "rounds": 2}])
    data = phantoms(experiment, "site-2")
    run_loop(experiment, data, tmp_path, "a")
    split, settings = data["site-2"].split("train"), experiment.training
    net = build_network(experiment.network, 4, experiment.seed).to(memory_format=torch.channels_last).train()
    objective = build_objective(experiment.objective)
    optimiser = torch.optim.SGD(net.parameters(), lr=settings.learning_rate)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for number in range(2):
        purpose = (experiment.seed, "site-2", "train", number, 0)
        order = generator(*purpose, "order").permutation(len(split.labels))
        for step in range(len(order) // settings.batch_size):
            samples = order[step * settings.batch_size : (step + 1) * settings.batch_size]
            images = augment(split.images[samples], samples, experiment.augment, (*purpose, "augment"))
            logits = net(images.to(memory_format=torch.channels_last))
            clock = Clock(number, 2, 0, 1, step, len(order) // settings.batch_size)
            optimiser.zero_grad()
            objective.score(logits, split.labels[samples], clock).backward()
            optimiser.step()
    torch.set_num_threads(threads)
    plain = net.state_dict()
    stored, _ = storage.read_tensors(tmp_path / "a" / "server" / "train-0001.safetensors")
    assert stored
    assert tensors_digest(stored) == tensors_digest({key: plain[key] for key in stored})
    kept, _ = storage.read_tensors(tmp_path / "a" / "site-2" / "train-0001.safetensors")
    assert tensors_digest(kept) == tensors_digest({key: plain[key] for key in kept})


@pytest.mark.slow
def test_a_run_killed_at_every_write_ends_with_the_same_bits(tiny, phantoms, tmp_path):
    phases = [{"name": f"phase{at}", "rounds": count} for at, count in enumerate((2, 1))]
    # Encoded both ways: what rounding lost stands at either end in what a kill must not take.
    experiment = tiny(phases=phases, exchange={"codec": {"name": "int4", "smallest": 100}})
    data = phantoms(experiment, "site-1", "site-2")
    expected = run_loop(experiment, data, tmp_path, "whole")
    got, deaths = killed_at_every_write(lambda: run_loop(experiment, data, tmp_path, "cut"), tmp_path / "cut")
    assert deaths > 50
    assert figures(got) == figures(expected)
    for site in data:
        whole, cut = (
            json.loads((tmp_path / run / site / "final" / "figures.json").read_text()) for run in ("whole", "cut")
        )
        assert whole == cut


@pytest.mark.attack(
    "an accident",
    "the power is cut at the server and the sites, at any moment",
    "the run goes on and ends with the same bits",
)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_a_run_under_which_the_power_goes_ends_with_the_same_bits(tiny, phantoms, tmp_path, seed):
    experiment = tiny(phases=[{"name": "train", "rounds": 3}], exchange={"codec": {"name": "int4", "smallest": 100}})
    data = phantoms(experiment, "site-1", "site-2")
    expected = run_loop(experiment, data, tmp_path, "whole")
    got, cuts = survives_power_cuts(lambda: run_loop(experiment, data, tmp_path, "cut"), tmp_path / "cut", seed, 12)
    assert cuts > 4
    assert figures(got) == figures(expected)
    for site in data:
        assert read_history(tmp_path / "cut" / site).steps() == read_history(tmp_path / "whole" / site).steps()
        whole, cut = (
            json.loads((tmp_path / run / site / "final" / "figures.json").read_text()) for run in ("whole", "cut")
        )
        assert whole == cut


def test_a_round_waits_for_the_disk_twice_at_a_site_and_four_times_at_the_server(tiny, phantoms, tmp_path, monkeypatch):
    """And once more at a site of FLARE, for its ledger."""
    experiment = tiny(phases=[{"name": "train", "rounds": 3}])
    seen = []
    monkeypatch.setattr(storage, "sync", lambda path: seen.append(path.relative_to(tmp_path / "r")))
    run_loop(experiment, phantoms(experiment, "site-1", "site-2"), tmp_path, "r")
    names = [
        f"{path.parent}/{path.name.removeprefix('.').partition('.')[0]}" if path.suffix == ".tmp" else str(path)
        for path in seen
    ]
    first = names.index("server/run") + 2  # the run's beginning, then round by round
    for number in range(3):
        step = f"train-{number:04d}"
        sites = [word for site in ("site-1", "site-2") for word in (f"{site}/{step}", site)]
        expected = [*sites, f"server/{step}", f"server/{step}", "server/run", "server"]
        assert names[first + 8 * number : first + 8 * (number + 1)] == expected


def test_the_test_split_is_read_once(tiny, phantoms, tmp_path, monkeypatch):
    experiment = tiny(phases=[{"name": "train", "rounds": 1}])
    data = phantoms(experiment, "site-1")
    reads = []
    spied = copy.copy(data["site-1"])
    monkeypatch.setattr(type(spied), "split", _counting(type(spied).split, reads))
    coordinator = Coordinator(experiment, "a", tmp_path / "a" / "server")
    host = Site(experiment, data["site-1"], tmp_path / "a" / "site-1")
    while coordinator.done < len(coordinator.plan):
        coordinator.begin(["site-1"])
        order, tensors = coordinator.order("site-1"), coordinator.down()
        first = host.handle(order, tensors)
        assert host.handle(order, tensors).scalars == first.scalars  # asked twice, the same answer
        coordinator.accept("site-1", first)
        coordinator.close()
    assert reads.count("test") == 1


def _counting(split, reads):
    def counted(self, name):
        reads.append(name)
        return split(self, name)

    return counted


def test_a_run_that_failed_before_its_first_step_gives_its_name_back(tiny, phantoms, tmp_path):
    large = tiny(training={"batch_size": 4096})
    with pytest.raises(QuorumError, match="fewer than one batch"):
        run_loop(large, phantoms(large, "site-1"), tmp_path, "a")
    assert not (tmp_path / "a").exists()
    experiment, told = tiny(phases=[{"name": "train", "rounds": 1}]), []
    run_loop(experiment, phantoms(experiment, "site-1"), tmp_path, "a", tell=lambda done, of: told.append((done, of)))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]  # train, validate, finalise
    other = tiny(phases=[{"name": "train", "rounds": 2}])
    with pytest.raises(StateError, match="holds a run of other settings"):
        run_loop(other, phantoms(other, "site-1"), tmp_path, "a")
    assert (tmp_path / "a" / "server" / "results.json").exists()


def test_a_run_that_stops_keeps_no_single_sites_update(tiny, phantoms, tmp_path, monkeypatch):
    experiment, handle, held = tiny(quorum=2), Site.handle, []

    def once(self, order, *rest):
        if order.stamp.round and self._data.name == "site-2":
            held.extend(path.name for path in (tmp_path / "a" / "server" / "spool").iterdir())
            raise TrainingError("no")
        return handle(self, order, *rest)

    monkeypatch.setattr(Site, "handle", once)
    with pytest.raises(QuorumError, match="the quorum is 2"):
        run_loop(experiment, phantoms(experiment, "site-1", "site-2"), tmp_path, "a")
    assert held == ["site-1.update"]
    assert not (tmp_path / "a" / "server" / "spool").exists()


def test_names_are_checked_before_a_folder_is_made(tiny, phantoms, tmp_path):
    experiment = tiny()
    sites = phantoms(experiment, "site-1")
    one = sites["site-1"]
    for run, names in (("../x", sites), ("a", {"../x": one}), ("a", {"server": one}), ("a", {})):
        with pytest.raises((RefusedError, SettingsError)):
            run_loop(experiment, names, tmp_path / "deep" / "root", run)
    assert not (tmp_path / "deep").exists()
