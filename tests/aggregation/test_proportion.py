"""Updates out of all proportion are refused by name when a round closes; the others' bits are what they would be."""

import math
import re

import pytest
import torch

from fedretina.aggregation.admission import groups, proportions
from fedretina.aggregation.coordinator import Coordinator
from fedretina.aggregation.spool import Spool
from fedretina.errors import QuorumError, RefusedError, SettingsError
from fedretina.exchange.partition import CONTROL, GRAM, partition_of
from fedretina.exchange.payload import Payload
from fedretina.settings.exchange import Kind
from fedretina.settings.experiment import Experiment
from printed import sentence

FACTOR = r"[\d.]+(e\+\d+)? times the larger"
ONE_ROUND = [{"name": "train", "rounds": 1}]
TWO_ROUNDS = [{"name": "train", "rounds": 2}]
SCALARS = {"prepare": {"images": 5.0}, "train": {"theta": 0.5, "images": 5.0}, "validate": {}, "calibrate": {}}


def update(coordinator, site, factor=1.0, kinds=frozenset(Kind)):
    """A small step away from what came down, of a site's own, and `factor` times as long in some kinds."""
    parts, down, task = coordinator.partition, coordinator.down(site), coordinator.step.task
    made = torch.Generator().manual_seed(ord(site))
    tensors = {}
    for key in parts.sent(task):
        shape, dtype = parts.shapes[key], parts.dtypes[key]
        step = torch.rand(shape, generator=made, dtype=torch.float64) + 0.5
        step = 100 * torch.eye(shape[0]).double() + step if key == GRAM else 0.01 * step
        if parts.kinds[key] in kinds:
            step = factor * step
        start = down[key].double() if key in down and not key.startswith(CONTROL) else 0.0
        tensors[key] = (start + step).to(dtype)
    return Payload(tensors, SCALARS[task], coordinator.order(site).stamp)


def step(coordinator, sites, **factors):
    """Do one step; a site named with a factor sends an update that many times as long."""
    coordinator.begin(sites)
    for site in sites:
        changed = factors.get(site, {})
        coordinator.accept(site, update(coordinator, site, **changed))
    return coordinator.close()


@pytest.mark.attack(
    "a hostile site",
    "a finite update ten thousand times as long as the others', which would end the run",
    "refused by name and proportion when the round closes; the others' model has the bits that it has without the site",
)
@pytest.mark.parametrize("row", ["feduaa", "scaffold", "oct_fedavg"])
def test_a_stretched_update_is_refused_and_leaves_no_bit(row, tiny, tmp_path):
    experiment = tiny(row=row, phases=TWO_ROUNDS)
    coordinator = Coordinator(experiment, "r", tmp_path / "a")
    record = step(coordinator, "abc", b={"factor": 1e4})
    assert sorted(record["scalars"]) == sorted(record["bytes_up"]) == sorted(record["weights"]) == ["a", "c"]
    assert "out of all proportion" in record["refused"]["b"]
    assert "times the larger of the other sites' median change" in record["refused"]["b"]
    if "encoder" in record["refused"]["b"]:  # as the page quotes it
        said = f"site-2: {record['refused']['b']}"
        assert re.sub(FACTOR, "", said) == re.sub(FACTOR, "", sentence("docs/robust_rules.md", "site-2: the change"))
    assert sorted(record["proportion"]) == ["a", "c"]
    assert max(record["proportion"].values()) < 3
    without = Coordinator(experiment, "r", tmp_path / "b")
    without.begin("abc")
    for site in "ac":
        without.accept(site, update(without, site))
    assert without.close()["digest"] == record["digest"]
    coordinator.begin("abc")
    assert coordinator.order("b").accepted is None  # so it keeps nothing of that round
    assert coordinator.order("a").accepted == 0


@pytest.mark.parametrize(
    ("row", "kind"),
    [("scaffold", "control"), ("scaffold", "statistic"), ("scaffold", "norm"), ("oct_fedavg", "head")],
)
def test_no_kind_hides_behind_another(row, kind, tiny, tmp_path):
    # Statistics are measured by their roots, and controls beside the parameters that they steer.
    factor = {"statistic": 1e10, "control": 1e6}.get(kind, 1e5)
    coordinator = Coordinator(tiny(row=row, phases=ONE_ROUND), "r", tmp_path)
    record = step(coordinator, "abc", c={"factor": factor, "kinds": {Kind(kind)}})
    assert list(record["refused"]) == ["c"]
    assert f"its {kind} tensors" in record["refused"]["c"]


@pytest.mark.attack(
    "a hostile site",
    "an update that is next to nothing, to make the only other site look out of proportion",
    "the other is measured against the model too, and counts",
)
def test_of_two_sites_the_aggregate_tells_which_is_the_odd_one(tiny, tmp_path):
    coordinator = Coordinator(tiny(phases=TWO_ROUNDS), "r", tmp_path)
    record = step(coordinator, "ab", b={"factor": 1e-12})
    assert record["refused"] == {}
    record = step(coordinator, "ab", b={"factor": 1e5})
    assert list(record["refused"]) == ["b"]


def test_a_site_alone_is_measured_against_the_model(tiny, tmp_path):
    coordinator = Coordinator(tiny(phases=TWO_ROUNDS), "r", tmp_path)
    assert step(coordinator, "a", a={"factor": 10})["refused"] == {}
    with pytest.raises(QuorumError, match=r"train-0001: 0 updates were accepted, the quorum is 1 \(a: the change"):
        step(coordinator, "a", a={"factor": 1e5})
    assert step(coordinator, "a")["refused"] == {}  # the step begun again


def test_below_the_quorum_the_round_is_repeated(tiny, tmp_path):
    coordinator = Coordinator(tiny(phases=ONE_ROUND, quorum=3), "r", tmp_path)
    with pytest.raises(QuorumError, match=r"2 updates were accepted, the quorum is 3 \(b: the change of its encoder"):
        step(coordinator, "abc", b={"factor": 1e5})
    assert coordinator.done == 0


@pytest.mark.parametrize(("row", "task"), [("fedap", "prepare"), ("mdt", "calibrate")])
def test_what_is_sent_once_is_measured_against_the_others_alone(row, task, tiny, tmp_path):
    for sites in ("ab", "abc"):
        coordinator = Coordinator(tiny(row=row, phases=ONE_ROUND), "r", tmp_path / sites)
        while coordinator.step.task != task:
            step(coordinator, sites)
        record = step(coordinator, sites, b={"factor": 1e7})
        # Of two, nobody could tell which is the odd one.
        assert list(record["refused"]) == (["b"] if sites == "abc" else [])
        assert ("proportion" in record) == (sites == "abc")


def test_the_figure_is_that_of_the_formula_at_once_over_whole_tensors(tiny, tmp_path):
    parts = Coordinator(tiny(row="fedavg", phases=ONE_ROUND), "r", tmp_path / "run").partition
    made = torch.Generator().manual_seed(0)

    def drawn():
        return {key: torch.rand(parts.shapes[key], generator=made).to(parts.dtypes[key]) for key in parts.sent("train")}

    start, sent, spool = drawn(), {site: drawn() for site in "abc"}, Spool(tmp_path / "spool")
    for site, tensors in sent.items():
        spool.put(site, tensors)
    found = proportions(spool, "abc", parts, "train", lambda site: start)

    def length(keys, tensors, less=None):
        total = 0.0
        for key in keys:
            value, from_ = tensors[key].double(), torch.zeros(()) if less is None else less[key].double()
            if key.endswith("running_var"):  # a variance grows with the square of what it measures
                value, from_ = value.sqrt(), from_.sqrt()
            total += float((value - from_).square().sum())
        return math.sqrt(total)

    for site in "abc":
        shares = {}
        for group in groups(parts, "train"):
            changes = sorted(length(group.keys, sent[other], start) for other in "abc" if other != site)
            plausible = max(changes[1], group.share * length(group.keys, start))
            shares[group.name] = length(group.keys, sent[site], start) / plausible
        assert found[site].value == pytest.approx(max(shares.values()), rel=1e-9)
        assert shares[found[site].group] == max(shares.values())


def test_it_can_be_widened_and_switched_off(tiny, tmp_path):
    for most in (1e6, None):
        coordinator = Coordinator(tiny(phases=ONE_ROUND, aggregation={"proportion": most}), "r", tmp_path / str(most))
        record = step(coordinator, "abc", b={"factor": 1e4})
        assert record["refused"] == {}
        assert ("proportion" in record) == (most is not None)
    with pytest.raises(SettingsError, match="proportion"):
        Experiment.resolve({"aggregation": {"proportion": 1}})


def test_what_travels_encrypted_and_counters_are_not_looked_at(tiny):
    from fedretina.networks.build import build_on_meta

    experiment = tiny(row="feduaa_official")
    parts = partition_of(experiment, build_on_meta(experiment.network, 5))
    looked = {key for group in groups(parts, "train") for key in group.keys}
    assert set(parts.shared) - looked == {key for key in parts.shared if key.endswith("num_batches_tracked")}
    experiment = tiny(row="oct_fedavg", exchange={"encrypt": "head"})
    parts = partition_of(experiment, build_on_meta(experiment.network, 4))
    assert {group.name for group in groups(parts, "train")} == {"encoder", "norm", "statistic"}


@pytest.mark.attack(
    "a hostile site",
    "1e29 in every tensor",
    "refused by name on arrival, and the others go on",
)
def test_absurd_values_are_refused_on_arrival(tiny, tmp_path):
    coordinator = Coordinator(tiny(phases=ONE_ROUND, aggregation={"proportion": None}), "r", tmp_path)
    coordinator.begin("ab")
    with pytest.raises(RefusedError, match=r"of size 1.5e.29, at most 1e\+06 is taken"):
        coordinator.accept("b", update(coordinator, "b", factor=1e31))  # 1e29 beside it
    coordinator.accept("a", update(coordinator, "a"))
    assert list(coordinator.close()["scalars"]) == ["a"]
