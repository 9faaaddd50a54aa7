"""FedAvgM and FedAdam in the whole round, against a slow form; and what they cannot stand beside."""

import numpy as np
import pytest
import torch

from fedretina.aggregation.coordinator import Coordinator
from fedretina.errors import SettingsError
from fedretina.exchange.payload import Payload
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import merged
from killed import killed_at_every_write

SITES, ROUNDS = ("site-1", "site-2", "site-3"), 3
IMAGES = {"site-1": 10.0, "site-2": 30.0, "site-3": 60.0}


def settings(optimiser):
    return {
        "row": "fedavg",
        "phases": [{"name": "train", "rounds": ROUNDS}],
        "aggregation": {"rule": "samples", "optimiser": optimiser},
    }


def update(sent, number, site):
    """What a site makes of a model: another in each round, BatchNorm's statistics too."""
    made = torch.Generator().manual_seed(100 * number + SITES.index(site))
    return {key: value + 0.05 * torch.rand(value.shape, generator=made) for key, value in sorted(sent.items())}


def rounds(experiment, folder, backwards=False):
    """All rounds, each by a server that knows nothing but its folder; the models after them, and what went down."""
    models, downs = [], []
    while True:
        coordinator = Coordinator(experiment, "r", folder)
        if coordinator.done == ROUNDS:
            return models, downs, coordinator
        coordinator.begin(SITES)
        sent = coordinator.down()
        for site in sorted(SITES, reverse=backwards):
            scalars = {"theta": 0.5, "images": IMAGES[site]}
            stamp = coordinator.order(site).stamp
            coordinator.accept(site, Payload(update(sent, coordinator.done, site), scalars, stamp))
        coordinator.close()
        models.append(coordinator._store.model(coordinator.done - 1))
        downs.append(sent)


def slowly(start, models, step):
    """The rounds number by number in NumPy: a mean by images, then the optimiser over each parameter."""
    w, memory = {key: value.numpy().astype(np.float64) for key, value in start.items()}, {}
    for number in range(len(models)):
        sent = {key: torch.from_numpy(value.astype(np.float32)) for key, value in w.items()}
        ups = {site: update(sent, number, site) for site in SITES}
        for key, at in w.items():
            mean = sum(IMAGES[site] / 100 * ups[site][key].double().numpy() for site in SITES)
            mean = mean.astype(np.float32).astype(np.float64)
            w[key] = mean if "running" in key else at + step(memory.setdefault(key, {}), mean - at)
            w[key] = w[key].astype(np.float32).astype(np.float64)
    return w


def fedavgm(memory, way):
    memory["v"] = 0.8 * memory.get("v", 0.0) + way
    return 0.5 * memory["v"]


def fedadam(memory, way):
    memory["m"] = 0.9 * memory.get("m", 0.0) + 0.1 * way
    memory["v"] = 0.99 * memory.get("v", np.full_like(way, 0.01**2)) + 0.01 * way**2
    return 0.02 * memory["m"] / (np.sqrt(memory["v"]) + 0.01)


@pytest.mark.parametrize(
    ("optimiser", "step"),
    [
        ({"name": "fedavgm", "momentum": 0.8, "rate": 0.5}, fedavgm),
        ({"name": "fedadam", "rate": 0.02, "tau": 0.01}, fedadam),
    ],
)
@pytest.mark.slow
def test_rounds_are_those_of_the_paper_whoever_answers_first_and_whenever_the_server_dies(
    optimiser, step, tiny, tmp_path
):
    experiment = tiny(**settings(optimiser))
    models, downs, coordinator = rounds(experiment, tmp_path / "a")
    shared, parameters = coordinator.partition.shared, coordinator.partition.parameters
    assert set(shared) - set(parameters)  # BatchNorm's statistics travel here
    expected = slowly(downs[0], models, step)
    for key in shared:
        np.testing.assert_allclose(models[-1][key].numpy(), expected[key], rtol=0, atol=2e-6, err_msg=key)
    assert all(set(down) == set(shared) for down in downs)  # what the server remembers never goes down
    assert [record["bytes_down"] for record in coordinator.records] == [coordinator.records[0]["bytes_down"]] * ROUNDS
    same = [record["digest"] for record in coordinator.records]
    *_, other = rounds(experiment, tmp_path / "b", backwards=True)
    assert [record["digest"] for record in other.records] == same
    (*_, killed), deaths = killed_at_every_write(lambda: rounds(experiment, tmp_path / "c"), tmp_path / "c")
    assert deaths > 2 * ROUNDS
    assert [record["digest"] for record in killed.records] == same
    assert all(torch.equal(killed._store.model(2)[key], value) for key, value in models[-1].items())


def test_without_momentum_and_with_the_whole_way_it_is_fedavg_to_the_last_bit(tiny, tmp_path):
    digests = []
    for name, optimiser in (("plain", "none"), ("still", {"name": "fedavgm", "momentum": 0.0})):
        *_, coordinator = rounds(tiny(**settings(optimiser)), tmp_path / name)
        digests.append([record["digest"] for record in coordinator.records])
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ({"aggregation": {"rule": "similarity"}}, "'fedadam' moves one model for all sites, but rule 'similarity'"),
        ({"quorum": 3, "aggregation": {"rule": "uniform", "robust": "median"}}, "what robust 'median' promises"),
        ({"correction": "scaffold"}, "correction 'scaffold' moves the aggregate itself"),
        ({"exchange": {"personal": "everything"}}, "nothing travels"),
        (
            {"grades": 5, "exchange": {"personal": "nothing", "encrypt": "head"}},
            "the server cannot read it: choose another of the two",
        ),
    ],
)
def test_what_it_cannot_stand_beside_is_refused_in_a_sentence(beside, said):
    base = {"row": "fedbn", "aggregation": {"optimiser": "fedadam"}}
    assert Experiment.resolve({**base, "correction": "fedprox"}).aggregation.optimiser.rate == 0.01
    with pytest.raises(SettingsError, match=said):
        Experiment.resolve(merged(base, beside))
    with pytest.raises(SettingsError, match="sums are added and never weighed"):
        Experiment.resolve({"row": "analytic", "aggregation": {"optimiser": "fedadam"}})


def test_the_digest_of_a_run_without_it_is_the_one_that_runs_began_with_before_there_was_any():
    plain, set_to_none = (
        Experiment.resolve({"row": "fedavg", "aggregation": more}) for more in ({}, {"optimiser": "none"})
    )
    assert "optimiser" not in plain.agreed()["aggregation"]
    assert plain.settings_digest() == set_to_none.settings_digest()
    moved = Experiment.resolve({"row": "fedavg", "aggregation": {"optimiser": "fedavgm"}})
    assert moved.settings_digest() != plain.settings_digest()
    assert Experiment.resolve(moved.agreed()) == moved
