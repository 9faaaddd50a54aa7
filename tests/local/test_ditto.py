"""A model of the site's own beside the one that travels (Ditto)."""

import pytest
import torch

from fedretina import storage
from fedretina.data.augment import augment
from fedretina.errors import SettingsError
from fedretina.local.twin import twin_settings
from fedretina.loop import run_loop
from fedretina.losses.objective import Clock, build_objective
from fedretina.networks.build import build_network
from fedretina.seeds import generator
from fedretina.settings.experiment import Experiment

PULL, ROUNDS, TUNED = 0.5, 2, {"epochs": 2, "when": "rounds", "learning_rate": 0.02}


def by_hand(experiment, split, aggregates, grades):
    """v of one site, step by step with torch alone: SGD down the gradient of the loss and lambda (v - w_t)."""
    net = build_network(experiment.network, grades, experiment.seed).to(memory_format=torch.channels_last).train()
    optimiser = torch.optim.SGD(net.parameters(), lr=TUNED["learning_rate"])
    objective, size = build_objective(experiment.objective), experiment.training.batch_size
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for number, sent in enumerate(aggregates):
        for epoch in range(TUNED["epochs"]):
            purpose = (experiment.seed, "site-2", "train", number, epoch)
            order = generator(*purpose, "order").permutation(len(split.labels))
            for at in range(len(order) // size):
                samples = order[at * size : (at + 1) * size]
                images = augment(split.images[samples], samples, experiment.augment, (*purpose, "augment"))
                logits = net(images.to(memory_format=torch.channels_last))
                clock = Clock(number, len(aggregates), epoch, TUNED["epochs"], at, len(order) // size)
                optimiser.zero_grad()
                objective.score(logits, split.labels[samples], clock).backward()
                for key, parameter in net.named_parameters():
                    if key in sent:
                        parameter.grad.add_(parameter.detach() - sent[key], alpha=PULL)
                optimiser.step()
    torch.set_num_threads(threads)
    return net.state_dict()


def test_the_model_that_travels_is_fedavgs_and_the_one_that_answers_is_held_to_it(tiny, phantoms, tmp_path):
    words = {"phases": [{"name": "train", "rounds": ROUNDS}], "choice": {"model": "last"}}
    plain = tiny(row="fedavg", **words)
    ditto = tiny(row="ditto", tune={**TUNED, "pull": PULL}, **words)
    data = phantoms(plain, "site-1", "site-2")
    expected, found = (run_loop(one, data, tmp_path, one.row) for one in (plain, ditto))
    for ours, fedavgs in zip(found["steps"], expected["steps"], strict=True):
        assert (ours["task"], ours["bytes_up"], ours["bytes_down"]) == (
            fedavgs["task"],
            fedavgs["bytes_up"],
            fedavgs["bytes_down"],
        )
        assert ours.get("digest") == fedavgs.get("digest")  # nothing of the site's own model travels
    folder = tmp_path / "ditto"
    start = build_network(ditto.network, 4, ditto.seed).state_dict()
    stored = [storage.read_tensors(folder / "server" / f"train-000{at}.safetensors")[0] for at in range(ROUNDS - 1)]
    own = by_hand(ditto, data["site-2"].split("train"), [{key: start[key] for key in stored[0]}, *stored], 4)
    kept, _ = storage.read_tensors(folder / "site-2" / f"train-000{ROUNDS - 1}.safetensors")
    answers, _ = storage.read_tensors(folder / "site-2" / "final" / "model.safetensors")
    assert set(own) == set(answers)
    for key, value in own.items():
        assert torch.equal(kept[key], value), key
        assert torch.equal(answers[key], kept[key])  # the site's own model answers, not the aggregate
        if key.startswith("head."):  # both are kept: the other's head is FedAvg's
            fedavgs, _ = storage.read_tensors(tmp_path / "fedavg" / "site-2" / f"train-000{ROUNDS - 1}.safetensors")
            assert torch.equal(kept[f"memory:travels:{key}"], fedavgs[key])
    assert found["sites"]["site-2"]["test_auc"] != expected["sites"]["site-2"]["test_auc"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"tune": {"when": "rounds"}}, "a model of the site's own would never train: set epochs"),
        ({"tune": {"epochs": 1, "pull": 0.5}}, "tune.pull: when 'end' does not read it"),
        ({"row": "ditto", "exchange": {"personal": "everything"}}, "let something travel"),
    ],
)
def test_what_nothing_would_read_or_hold_is_refused(words, said):
    with pytest.raises(SettingsError, match=said):
        Experiment.resolve({"row": "fedavg", **words})


def test_it_asks_for_no_step_of_its_own_and_a_twin_has_nothing_to_be_held_to():
    ditto = Experiment.resolve({"row": "ditto"})
    assert not twin_settings(ditto).tune.along
    assert twin_settings(Experiment.resolve({"row": "fedavg_ft"})).tune.epochs == 5
    assert set(Experiment.resolve({"row": "fedavg_ft"}).agreed()["tune"]) == {"epochs", "learning_rate"}


def test_its_twin_trains_as_long_and_as_fast_as_the_sites_own_model():
    phases = [{"name": "warm", "rounds": 1, "training": {"learning_rate": 0.1}}, {"name": "train", "rounds": 2}]
    training = {"learning_rate": 0.05, "stretches": [{"train": "head"}, {"train": "all", "epochs": 2}]}
    for rate, expected in (({"learning_rate": 0.002}, [0.002, 0.002]), ({}, [0.1, 0.05])):
        asked = {"row": "ditto", "phases": phases, "training": training, "tune": {"epochs": 3, **rate}}
        experiment = Experiment.resolve(asked)
        alone = twin_settings(experiment)
        found = [alone.phase(name).training for name in ("warm", "train")]
        assert [(one.epochs, one.stretches, one.learning_rate) for one in found] == [(3, (), one) for one in expected]
        assert Experiment.model_validate(alone.agreed()) == alone
    plain = Experiment.resolve({"row": "fedavg", "phases": phases, "training": training})
    assert twin_settings(plain).phases == plain.phases
