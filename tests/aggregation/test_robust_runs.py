"""Robust rules in the whole round: what the server records, when it waits, and that a resumed run keeps its bits."""

import pytest
import torch

from fedretina.aggregation.coordinator import Coordinator
from fedretina.errors import QuorumError, SettingsError
from fedretina.exchange.payload import Payload, tensors_digest
from fedretina.local.site import Site
from fedretina.loop import run_loop
from fedretina.report.render import render_server
from fedretina.report.server_report import server_report
from fedretina.settings.experiment import Experiment

SITES = tuple(f"site-{number}" for number in range(1, 6))
SCALARS = {"theta": 0.5, "images": 100.0, "val_auc": 0.7}


def words(robust, rule="uniform", quorum=5, **more):
    # What the rule alone holds: by default its most absurd input would be refused before it.
    aggregation = {"rule": rule, "robust": robust, "proportion": None}
    return {"row": "fedbn", "quorum": quorum, "aggregation": aggregation, **more}


def update(sent, number):
    made = torch.Generator().manual_seed(number)
    return {
        key: value + 0.01 * torch.randn(value.shape, generator=made) if value.is_floating_point() else value + number
        for key, value in sorted(sent.items())
    }


def one_round(experiment, folder, hostile=None, sites=SITES):
    coordinator = Coordinator(experiment, "r", folder)
    coordinator.begin(SITES)
    sent = coordinator.down()
    for number, site in enumerate(sites):
        tensors = update(sent, number)
        if site == hostile:
            tensors = {key: (1000 * value).to(value.dtype) for key, value in tensors.items()}
        coordinator.accept(site, Payload(tensors, SCALARS, coordinator.order(site).stamp))
    return coordinator, coordinator.close()


def mean_digest(experiment, folder):
    sent = Coordinator(experiment, "r", folder).down()
    ups = [update(sent, number) for number in range(len(SITES))]
    mixed = {}
    for key, value in sent.items():
        total = ups[0][key].double() * 0.2
        for up in ups[1:]:
            total = total + up[key].double() * 0.2
        mixed[key] = total.to(value.dtype)
    return tensors_digest(mixed)


@pytest.mark.parametrize("row", ["fedbn", "feduaa_official"])
def test_off_it_is_the_weighted_mean_to_the_last_bit(row, tiny, tmp_path):
    experiment = tiny(row=row, aggregation={"rule": "uniform"})
    _, record = one_round(experiment, tmp_path / "a")
    assert record["digest"] == mean_digest(experiment, tmp_path / "b")
    assert record["weights"] == dict.fromkeys(SITES, 0.2)
    assert "robust" not in record


@pytest.mark.parametrize("name", ["norm_bound", "trimmed_mean", "median", "krum"])
@pytest.mark.parametrize("batchnorm", ["local_all", "shared_all"])
def test_the_record_says_what_became_of_a_hostile_site(name, batchnorm, tiny, tmp_path):
    experiment = tiny(**words({"name": name}, exchange={"batchnorm": batchnorm}))
    _, plain = one_round(
        tiny(**words({"name": "none"}, exchange={"batchnorm": batchnorm})), tmp_path / "plain", "site-2"
    )
    coordinator, record = one_round(experiment, tmp_path / "robust", "site-2")
    assert record["digest"] != plain["digest"]
    assert sum(record["weights"].values()) == pytest.approx(1)
    if name == "norm_bound":
        assert record["weights"] == plain["weights"]
        assert record["robust"]["taken"]["site-2"] < 0.02
        assert min(taken for site, taken in record["robust"]["taken"].items() if site != "site-2") > 0.9
    else:
        assert record["weights"]["site-2"] < 0.001
    start = coordinator._model._start
    after = coordinator._store.model(0)
    for key in coordinator.partition.shared:
        assert float((after[key].double() - start[key].double()).abs().max()) < 10, key


def test_a_round_below_what_the_rule_needs_waits_for_more(tiny, tmp_path):
    experiment = tiny(**words({"name": "krum"}))
    with pytest.raises(QuorumError, match=r"4 updates were accepted, the quorum is 5"):
        one_round(experiment, tmp_path, sites=SITES[:4])
    coordinator, record = one_round(experiment, tmp_path)  # the same folder: the step is begun again
    assert coordinator.done == 1
    assert sorted(record["weights"]) == list(SITES)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"quorum": 4}, r"quorum is 4, but aggregation.robust 'krum' as it is set needs 5 .* set quorum to 5"),
        ({"correction": {"name": "scaffold"}}, "correction 'scaffold' moves the aggregate by a plain mean"),
        ({"correction": {"name": "feddyn"}}, "choose another of the two"),
        ({"exchange": {"personal": "everything"}}, "nothing travels: set it to 'none'"),
    ],
)
def test_what_a_robust_rule_cannot_hold_is_refused_in_a_sentence(changed, said):
    whole = words({"name": "krum"})
    Experiment.resolve({**whole, "correction": {"name": "fedprox"}})
    with pytest.raises(SettingsError, match=said):
        Experiment.resolve({**whole, **changed})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["norm_bound", "median"])
def test_a_run_taken_up_between_any_two_steps_ends_with_the_same_bits(name, tiny, phantoms, tmp_path):
    experiment = tiny(**words({"name": name}, quorum=3))
    data = phantoms(experiment)
    expected = run_loop(experiment, data, tmp_path, "whole")
    done = -1
    while done < len(expected["steps"]) - 1:
        coordinator = Coordinator(experiment, "whole", tmp_path / "parts" / "server")  # all memory is lost here
        done = coordinator.done
        coordinator.begin(data)
        for site in reversed(data):
            host = Site(experiment, data[site], tmp_path / "parts" / site)
            coordinator.accept(site, host.handle(coordinator.order(site), coordinator.down()))
        coordinator.close()
    assert list(coordinator.records) == expected["steps"]
    report = server_report(expected)
    assert sorted(report["rounds"][0]["robust"]) == (["norm", "taken"] if name == "norm_bound" else [])
    assert ("What the robust rule did" in render_server(report)) == (name == "norm_bound")
