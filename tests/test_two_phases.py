"""Two phases in one run: pre-training without labels, then training with them, in the plain loop."""

import copy
import json

import pytest
import torch

from fedretina import storage
from fedretina.aggregation.coordinator import Coordinator
from fedretina.data.site_data import load_site_data
from fedretina.exchange.partition import CONTROL, partition_of
from fedretina.exchange.payload import tensors_bytes
from fedretina.local.site import Site
from fedretina.loop import run_loop
from fedretina.networks.build import build_on_meta
from fedretina.settings.contrastive import ContrastiveSettings
from fedretina.settings.exchange import Kind
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import merged
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.site import SiteDataSettings
from killed import killed_at_every_write

ROUNDS = {"pretrain": 2, "train": 2}


def two(row="oct_moco_scaffold", rounds=ROUNDS, **words):
    """A small two-phase experiment on scans."""
    phases = [
        {"name": name, "rounds": number, "training": {"epochs": 1, "batch_size": 8, "threads": 1}}
        for name, number in rounds.items()
    ]
    base = {
        "row": row,
        "seed": 3,
        "phases": phases,
        "images": {"image_size": 32},
        "network": {
            "encoder": "efficientnet_lite0",
            "contrast": {"hidden": 16, "width": 8} if "pretrain" in rounds else None,
        },
        "training": {"batch_size": 8, "threads": 1},
        "phantom_images": 24,
        "report": {"draws": 10, "page": False},
    }
    return Experiment.resolve(merged(base, words))


@pytest.fixture
def scans(phantoms, little_encoder):
    return lambda experiment, *names: phantoms(experiment, *(names or ("site-1", "site-2")))


def spied(experiment, data, folder):
    """Run the steps by hand; gives what went down and came up in each."""
    coordinator = Coordinator(experiment, "r", folder / "server")
    hosts = {name: Site(experiment, data[name], folder / name) for name in data}
    found = []
    while coordinator.done < len(coordinator.plan):
        coordinator.begin(hosts)
        step, seen = coordinator.step, {}
        for name, host in hosts.items():
            down = {key: tensor.clone() for key, tensor in coordinator.down(name).items()}
            answer = host.handle(coordinator.order(name), down)
            coordinator.accept(name, answer)
            seen[name] = (down, answer)
        coordinator.close()
        found.append((step, seen))
    return found


@pytest.mark.slow
def test_labels_do_nothing_in_the_first_phase(scans, tmp_path):
    experiment = two(rounds={"pretrain": 1, "train": 1})
    data = scans(experiment)
    blind = {}
    for name, site in data.items():
        other = copy.copy(site)

        def shuffled(split, _site=site):
            found = _site.split(split)
            return found._replace(labels=found.labels.flip(0)) if split == "train" else found

        object.__setattr__(other, "split", shuffled)
        blind[name] = other
    first, second = (spied(experiment, d, tmp_path / at) for at, d in (("a", data), ("b", blind)))
    for site in data:
        for key, tensor in first[0][1][site][1].tensors.items():
            assert torch.equal(tensor, second[0][1][site][1].tensors[key]), key
    same = [
        torch.equal(tensor, second[1][1]["site-1"][1].tensors[key])
        for key, tensor in first[1][1]["site-1"][1].tensors.items()
    ]
    assert not all(same)  # the second phase reads them


@pytest.mark.slow
def test_each_phase_moves_its_own_part_and_begins_with_controls_of_zero(scans, tmp_path):
    experiment = two()
    parts = partition_of(experiment, build_on_meta(experiment.network, experiment.head_width))
    found = spied(experiment, scans(experiment), tmp_path)
    tasks = [step.task for step, _ in found]
    assert tasks == ["pretrain", "pretrain", "train", "train", "validate", "finalise"]
    kinds = {}
    for step, seen in found:
        down, answer = seen["site-1"]
        names = {key.removeprefix(CONTROL).partition(".")[0] for key in answer.tensors}
        kinds.setdefault(step.task, set()).update(names)
        if step.task in ("pretrain", "train"):
            assert set(down) == set(answer.tensors) == set(parts.sent(step.task))
            controls = [down[key] for key in down if key.startswith(CONTROL)]
            zero = all(float(tensor.abs().sum()) == 0 for tensor in controls)
            assert controls
            assert zero == (step.round == 0)
    assert kinds["pretrain"] == {"encoder", "contrast"}
    assert kinds["train"] == {"encoder", "head"}
    assert kinds["validate"] == kinds["finalise"] == set()
    assert {parts.kinds[key] for key in parts.shared if key.startswith("contrast.")} == {Kind.PROJECTOR}
    # The second phase begins with the first one's encoder, averaged; the head with the seed's.
    ends, begins = found[1][1], found[2][1]["site-1"][0]
    key = min(key for key in begins if key.startswith("encoder.") and key.endswith("weight"))
    mean = sum(ends[site][1].tensors[key].double() for site in ends) / len(ends)
    assert torch.allclose(begins[key].double(), mean, atol=1e-6)
    scalars = found[0][1]["site-1"][1].scalars
    assert set(scalars) == {"images", "patients", "contrast_loss"}
    assert scalars["contrast_loss"] > 0


def with_momentum(phase, state):
    training = phase.training.model_copy(update={"momentum": 0.9, "optimizer_state": state})
    return phase.model_copy(update={"training": training})


@pytest.mark.slow
def test_an_optimiser_that_is_kept_goes_on_in_the_next_round_without_labels(scans, tmp_path):
    experiment = two(rounds={"pretrain": 2, "train": 1})
    data, digests = scans(experiment, "site-1"), {}
    for state in ("reset", "keep"):
        phases = (with_momentum(experiment.phases[0], state), experiment.phases[1])
        found = run_loop(experiment.model_copy(update={"phases": phases}), data, tmp_path, state)
        digests[state] = [step["digest"] for step in found["steps"] if step["task"] == "pretrain"]
        held = [
            storage.read_tensors(tmp_path / state / "site-1" / f"{name}.safetensors")[0]
            for name in ("pretrain-0001", "train-0000")
        ]
        assert [any("optimizer:" in key for key in one) for one in held] == [state == "keep", False]
    assert digests["keep"][0] == digests["reset"][0]
    assert digests["keep"][1] != digests["reset"][1]


@pytest.mark.slow
def test_killed_at_every_write_of_both_phases_a_run_ends_with_the_same_bits(scans, tmp_path):
    kept = {"method": "moco_v2", "key_sync": "ema", "queue_start": "keep", "queue": 16}  # all that can be durable is
    experiment = two(rounds={"pretrain": 2, "train": 1}, phantom_images=16)
    first = with_momentum(experiment.phases[0].model_copy(update={"contrastive": ContrastiveSettings.of(kept)}), "keep")
    experiment = experiment.model_copy(update={"phases": (first, *experiment.phases[1:])})
    data = scans(experiment, "site-4")
    expected = run_loop(experiment, data, tmp_path, "whole")
    got, deaths = killed_at_every_write(lambda: run_loop(experiment, data, tmp_path, "cut"), tmp_path / "cut")
    assert deaths > 25
    assert {k: v for k, v in got.items() if k != "run"} == {k: v for k, v in expected.items() if k != "run"}


@pytest.mark.slow
def test_pretraining_alone_gives_an_encoder_file_and_finetuning_starts_from_it(scans, tmp_path):
    first = two(rounds={"pretrain": 2})
    data = scans(first)
    results = run_loop(first, data, tmp_path, "pre")
    assert [step["task"] for step in results["steps"]] == ["pretrain", "pretrain"]
    assert results["chosen"] == "pretrain-0001"
    said = json.loads((tmp_path / "pre" / "site-1" / "final" / "encoder.json").read_text())
    assert said["sha256"] == json.loads((tmp_path / "pre" / "server" / "encoder.json").read_text())["sha256"]
    encoders = [tmp_path / "pre" / end / "encoder.safetensors" for end in ("server", "site-1/final", "site-2/final")]
    assert len({path.read_bytes() for path in encoders}) == 1
    assert not (tmp_path / "pre" / "site-1" / "final" / "model.safetensors").exists()
    file = tmp_path / "pre" / "site-1" / "final" / "encoder.safetensors"
    weights = {"source": "file", "file": str(file), "sha256": said["sha256"]}
    both = run_loop(two(report={"draws": 10, "page": True}), data, tmp_path, "both")
    assert "Contrastive loss by round" in (tmp_path / "both" / "server" / "report.html").read_text()
    alone = run_loop(two(rounds={"train": 2}, network={"weights": weights}), data, tmp_path, "alone")
    # One submission for both phases, or one each: the same models to the last bit.
    digests = [[s["digest"] for s in r["steps"] if s["task"] == "train"] for r in (both, alone)]
    assert digests[0] == digests[1]
    assert both["sites"] == alone["sites"]


@pytest.mark.slow
def test_a_queue_and_a_key_encoder_stay_at_the_site_and_are_gone_in_the_second_phase(scans, tmp_path):
    experiment = two(rounds={"pretrain": 1, "train": 1})
    found = spied(experiment, scans(experiment, "site-1"), tmp_path)
    for _, seen in found:
        assert not any("queue" in key or "key:" in key for key in seen["site-1"][1].tensors)
    assert tensors_bytes(found[0][1]["site-1"][1].tensors) > 0
    kept = list((tmp_path / "site-1").glob("train-0000.safetensors"))
    assert kept
    assert "contrastive:" not in kept[0].read_bytes()[:200_000].decode("latin-1")


@pytest.mark.slow
def test_fewer_labels_train_on_whole_patients_and_say_so(scans, tmp_path):
    experiment = two("oct_fedavg", rounds={"train": 1})
    few = two("oct_fedavg", rounds={"train": 1}, training={"batch_size": 4})
    phases = [phase.model_copy(update={"label_share": 0.4}) for phase in few.phases]
    few = few.model_copy(update={"phases": tuple(phases)})
    data = scans(experiment, "site-1")
    images = [
        run_loop(e, data, tmp_path, name)["steps"][0]["scalars"]["site-1"]["images"]
        for name, e in (("all", experiment), ("few", few))
    ]
    assert 4 <= images[1] <= 0.6 * images[0]


@pytest.mark.slow
def test_tweu_with_personal_heads_trains_on_scans_of_sites_that_grade_differently(tmp_path, little_encoder):
    experiment = two("oct_moco_feduaa", rounds={"pretrain": 1, "train": 2})
    schemes = {
        "site-1": "oct4",
        "site-2": "oct3",
        "site-4": GradingScheme(grades=("normal", "amd", "dme", "erm", "rvo")),
    }
    data = {
        name: load_site_data(
            name,
            SiteDataSettings(phantom_images=28, scheme=scheme),
            experiment.images,
            experiment.seed,
            tmp_path / "cache" / name,
        )
        for name, scheme in schemes.items()
    }
    found = spied(experiment, data, tmp_path)
    for step, seen in found:  # a head never travels
        for _, answer in seen.values():
            assert not any(key.startswith("head.") for key in answer.tensors), step.name
    thetas = [{name: one.scalars["theta"] for name, (_, one) in seen.items()} for s, seen in found if s.task == "train"]
    assert all(0 <= theta <= 1 for one in thetas for theta in one.values())
    results = json.loads((tmp_path / "server" / "results.json").read_text())
    last = [step for step in results["steps"] if step["task"] == "train"][-1]
    odds = {name: torch.tensor(theta, dtype=torch.float64).exp() for name, theta in thetas[-1].items()}
    assert last["weights"] == pytest.approx({name: float(one / sum(odds.values())) for name, one in odds.items()})
    assert {name: one["grades"] for name, one in results["sites"].items()} == {"site-1": 4, "site-2": 3, "site-4": 5}
    encoders, heads = set(), set()
    for name in schemes:
        model = storage.read_tensors(tmp_path / name / "final" / "model.safetensors")[0]
        card = json.loads((tmp_path / name / "final" / "card.json").read_text())
        assert "evidence" in json.dumps(card)
        heads.add(max(key for key in model if key.startswith("head.")))
        weights = [key for key in sorted(model) if key.startswith("encoder.") and model[key].dim() == 4]
        encoders.add(model[weights[0]].sum().item())
    assert len(heads) == len(encoders) == 1  # one encoder's weights, heads of one form and own widths


@pytest.mark.slow
def test_alone_a_site_pre_trains_too_and_its_model_can_be_read_again(scans, tmp_path):
    experiment = two(exchange={"personal": "everything"}, classes=None, correction={"name": "none"})
    data = scans(experiment, "site-4")
    results = run_loop(experiment, data, tmp_path, "alone")
    assert all(sum(step["bytes_up"].values()) == 0 for step in results["steps"])
    model = storage.read_tensors(tmp_path / "alone" / "site-4" / "final" / "model.safetensors")[0]
    assert not any(key.startswith("contrast.") for key in model)
    trainer = Site(experiment, data["site-4"], tmp_path / "again").trainer
    assert len(trainer.answers({}, model, data["site-4"].split("test")).logits) == data["site-4"].counts["test"]
    assert set(trainer.state({}, model)) == set(model)
