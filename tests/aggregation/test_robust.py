"""Robust rules against slow numpy forms, closed cases, and one hostile site of five."""

import itertools

import numpy as np
import pytest
import torch

from fedretina.aggregation import spool as spool_module
from fedretina.aggregation.robust import RoundUpdates, combining
from fedretina.aggregation.spool import Spool
from fedretina.errors import QuorumError
from fedretina.settings.aggregation import RobustSettings

SHAPES = {"w": (5, 3), "b": (4,), "scalar": (), "var": (6,), "n": ()}
LIKE = {key: torch.int64 if key == "n" else torch.float32 for key in SHAPES}
PARAMETERS = frozenset({"w", "b", "scalar"})
GROUPS = (("b", "scalar", "w"), ("var",), ("n",))
RULES = [name for name in RobustSettings.choices() if name != "none"]


def start():
    made = torch.Generator().manual_seed(99)
    return {key: _draw(key, made) for key in SHAPES}


def _draw(key, made):
    if key == "n":
        return torch.randint(100, 200, (), generator=made)
    scale = 1000.0 if key == "var" else 1.0
    return scale * torch.randn(SHAPES[key], generator=made)


def updates(count, seed=0):
    made, received = torch.Generator().manual_seed(seed), start()
    sent = {}
    for number in range(count):
        step = {key: _draw(key, made) for key in SHAPES}
        sent[f"site-{number}"] = {key: (received[key] + 0.1 * step[key]).to(LIKE[key]) for key in SHAPES}
    return sent


def accepted(tmp_path, sent, weights=None, order=None, like=LIKE):
    spool = Spool(tmp_path)
    for site in order or sent:
        spool.put(site, sent[site])
    weights = weights or dict.fromkeys(sorted(sent), 1 / len(sent))
    return RoundUpdates(spool, weights, start(), like, PARAMETERS & set(like))


def run(tmp_path, sent, name, weights=None, order=None, like=LIKE, **settings):
    return combining(RobustSettings.of({"name": name, **settings}))(accepted(tmp_path, sent, weights, order, like))


def arrays(sent, key):
    return np.stack([sent[site][key].double().numpy() for site in sorted(sent)])


def cast(key, value):
    return torch.as_tensor(value).to(LIKE[key])


def pulled(sent, key, factor):
    """A hostile site: its update turned round and stretched."""
    return {**sent, key: {k: (start()[k] - factor * (v - start()[k])).to(LIKE[k]) for k, v in sent[key].items()}}


def gap(tensors, like):
    return float(sum(((tensors[key] - like[key]).double() ** 2).sum() for key in PARAMETERS) ** 0.5)


def slow_trimmed(values, trim):
    ordered = np.sort(values, axis=0)
    return ordered[trim : len(values) - trim].mean(0)


def slow_factors(sent, keys, bound, limit=None):
    lengths = {}
    for site, tensors in sent.items():
        way = np.concatenate([(tensors[k].double() - start()[k].double()).numpy().reshape(-1) for k in keys])
        lengths[site] = float(np.linalg.norm(way))
    most = limit if limit is not None else bound * float(np.median(list(lengths.values())))
    return lengths, {site: min(1.0, most / length) if length else 1.0 for site, length in lengths.items()}


@pytest.mark.parametrize(("count", "hostile"), [(1, 0), (3, 1), (5, 1), (5, 2), (8, 2)])
def test_trimmed_mean_is_the_slow_form(tmp_path, count, hostile):
    sent = updates(count)
    got = run(tmp_path, sent, "trimmed_mean", hostile=hostile)
    for key in SHAPES:
        slow = cast(key, slow_trimmed(arrays(sent, key), hostile))
        torch.testing.assert_close(got.tensors[key], slow, rtol=1e-7, atol=0)
    assert sum(got.weights.values()) == pytest.approx(1)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
def test_median_is_numpys(tmp_path, count):
    sent = updates(count)
    got = run(tmp_path, sent, "median", hostile=0)
    for key in SHAPES:
        assert torch.equal(got.tensors[key], cast(key, np.median(arrays(sent, key), axis=0)))


def test_blocks_of_any_size_give_the_same_bits(tmp_path, monkeypatch):
    sent = updates(7)
    for name in RULES:
        whole = run(tmp_path / "a", sent, name)
        monkeypatch.setattr(spool_module, "_BLOCK", 1)
        cut = run(tmp_path / "b", sent, name)
        monkeypatch.undo()
        for key in SHAPES:
            assert torch.equal(whole.tensors[key], cut.tensors[key]), (name, key)
        assert cut.weights == pytest.approx(whole.weights)


def test_norm_bound_is_the_slow_form_with_any_weights(tmp_path):
    sent = updates(5)
    sent["site-2"] = {key: (start()[key] + 50 * (sent["site-2"][key] - start()[key])) for key in SHAPES}
    weights = {"site-0": 0.1, "site-1": 0.3, "site-2": 0.2, "site-3": 0.15, "site-4": 0.25}
    for settings in ({"bound": 0.9}, {"bound": 1.5}, {"limit": 0.2}):
        got = run(tmp_path, sent, "norm_bound", weights, **settings)
        smallest = dict.fromkeys(sent, 1.0)
        for keys in GROUPS:
            lengths, factors = slow_factors(sent, keys, settings.get("bound", 1.5), settings.get("limit"))
            smallest = {site: min(smallest[site], factors[site]) for site in sent}
            if keys == GROUPS[0]:
                assert got.figures["norm"] == pytest.approx(lengths)
            for key in keys:
                origin = start()[key].double().numpy()
                slow = sum(
                    weights[s] * (origin + factors[s] * (sent[s][key].double().numpy() - origin)) for s in sorted(sent)
                )
                torch.testing.assert_close(got.tensors[key], cast(key, slow), rtol=1e-6, atol=1e-7)
        assert got.figures["taken"] == pytest.approx(smallest)
        assert got.weights == weights


def test_norm_bound_that_holds_nobody_has_the_bits_of_the_mean(tmp_path):
    sent, weights = updates(3), {"site-0": 0.5, "site-1": 0.3, "site-2": 0.2}
    bounded = run(tmp_path / "a", sent, "norm_bound", weights, bound=1000)
    plain = run(tmp_path / "b", sent, "none", weights)
    assert bounded.figures["taken"] == dict.fromkeys(sent, 1.0)
    for key in SHAPES:
        assert torch.equal(bounded.tensors[key], plain.tensors[key])


def test_norm_bound_of_sites_that_did_not_move(tmp_path):
    still = {f"site-{number}": start() for number in range(3)}
    got = run(tmp_path, still, "norm_bound")
    assert got.figures["norm"] == dict.fromkeys(still, 0.0)
    for key in SHAPES:
        torch.testing.assert_close(got.tensors[key], start()[key])


def slow_krum(sent, hostile, keep, keys):
    sites = sorted(sent)
    flat = {s: np.concatenate([sent[s][k].double().numpy().reshape(-1) for k in sorted(keys)]) for s in sites}
    scores = {}
    for one in sites:
        others = sorted(float(np.sum((flat[one] - flat[two]) ** 2)) for two in sites if two != one)
        scores[one] = sum(others[: len(sites) - hostile - 2])
    return sorted(sites, key=lambda site: (scores[site], site))[:keep], scores


@pytest.mark.parametrize(("count", "hostile", "keep"), [(5, 1, 1), (7, 2, 1), (7, 1, 3), (8, 2, 6), (3, 0, 1)])
def test_krum_is_the_slow_form_on_parameters(tmp_path, count, hostile, keep):
    sent = updates(count, seed=4)
    like = {key: LIKE[key] for key in PARAMETERS}
    got = run(tmp_path, sent, "krum", hostile=hostile, keep=keep, like=like)
    chosen, scores = slow_krum(sent, hostile, keep, PARAMETERS)
    assert got.figures["score"] == pytest.approx(scores)
    assert {site for site, weight in got.weights.items() if weight} == set(chosen)
    for key in like:
        slow = np.stack([sent[site][key].double().numpy() for site in chosen]).mean(0)
        torch.testing.assert_close(got.tensors[key], cast(key, slow), rtol=1e-7, atol=0)


def test_krum_of_one_takes_that_sites_model_as_it_is(tmp_path):
    sent = updates(5, seed=2)
    got = run(tmp_path, sent, "krum")
    (chosen,) = (site for site, weight in got.weights.items() if weight == 1)
    for key in SHAPES:
        assert torch.equal(got.tensors[key], sent[chosen][key])


def test_large_buffers_do_not_hide_poisoned_weights_from_krum(tmp_path):
    sent = updates(5, seed=1)
    for at, site in enumerate(sorted(sent)[1:]):  # each goes its own way in var, by 100
        sent[site]["var"] = start()["var"] + 100.0 * (torch.arange(6) == at)
    sent["site-0"]["var"] = torch.stack([sent[site]["var"] for site in sorted(sent)[1:]]).mean(0)
    sent["site-0"]["w"] = sent["site-0"]["w"] + 10  # far in the weights, and nothing beside var's spread
    got = run(tmp_path, sent, "krum")
    assert got.weights["site-0"] == 0
    assert max(got.figures["score"], key=got.figures["score"].get) == "site-0"
    everything, _ = slow_krum(sent, 1, 1, ("w", "b", "scalar", "var"))
    assert everything == ["site-0"]  # what one distance over all would have taken


@pytest.mark.parametrize("name", RULES)
def test_equal_updates_come_back_as_they_are(tmp_path, name):
    same = updates(1)["site-0"]
    sent = {f"site-{number}": same for number in range(5)}
    got = run(tmp_path, sent, name)
    for key in SHAPES:
        torch.testing.assert_close(got.tensors[key], same[key], rtol=1e-7, atol=0)
    if name == "krum":
        assert got.weights["site-0"] == 1  # the first name among equals
        assert set(got.figures["score"].values()) == {0.0}
    else:
        assert got.weights == pytest.approx(dict.fromkeys(sent, 0.2))


@pytest.mark.parametrize("name", RULES)
def test_the_order_of_arrival_changes_no_bit(tmp_path, name):
    sent, seen = updates(5), set()
    for number, order in enumerate(itertools.islice(itertools.permutations(sent), 0, 120, 17)):
        got = run(tmp_path / str(number), sent, name, order=order)
        seen.add((b"".join(got.tensors[key].numpy().tobytes() for key in SHAPES), str(sorted(got.weights.items()))))
    assert len(seen) == 1


@pytest.mark.parametrize("factor", [1.0, 1e3, 1e30])
@pytest.mark.parametrize("name", ["trimmed_mean", "median", "krum"])
def test_one_hostile_of_five_cannot_leave_the_range_of_the_honest(tmp_path, name, factor):
    sent = pulled(updates(5), "site-3", factor)
    sent["site-3"]["n"] = torch.tensor(9)
    honest = {site: tensors for site, tensors in sent.items() if site != "site-3"}
    got = run(tmp_path, sent, name)
    for key in SHAPES:
        values = arrays(honest, key)
        assert np.all(got.tensors[key].double().numpy() >= values.min(0)), key
        assert np.all(got.tensors[key].double().numpy() <= values.max(0)), key
    if factor > 1:
        assert got.weights["site-3"] == min(got.weights.values())
        assert got.weights["site-3"] < 0.01


def test_one_huge_update_of_five_moves_the_bounded_mean_no_further_than_the_bound(tmp_path):
    sent = updates(5)
    honest = run(tmp_path / "h", {s: t for s, t in sent.items() if s != "site-3"}, "none")
    hostile = pulled(sent, "site-3", 1e30)
    hostile["site-3"]["n"] = sent["site-3"]["n"]
    plain = run(tmp_path / "p", hostile, "none")
    got = run(tmp_path / "g", hostile, "norm_bound", bound=1.0)
    lengths = sorted(got.figures["norm"].values())
    assert gap(plain.tensors, honest.tensors) > 1e20
    assert gap(got.tensors, start()) <= lengths[2] * 1.001
    assert got.figures["taken"]["site-3"] < 1e-20
    assert got.weights["site-3"] == pytest.approx(0.2)


def test_the_weights_are_the_shares_of_the_values_that_counted(tmp_path):
    like = {"b": torch.float32}
    rows = {"site-0": [1.0, 5.0, 2.0, 7.0], "site-1": [2.0, 1.0, 2.0, 7.0], "site-2": [3.0, 9.0, 8.0, 7.0]}
    sent = {site: {"b": torch.tensor(row)} for site, row in rows.items()}
    got = run(tmp_path, sent, "median", like=like)
    assert got.tensors["b"].tolist() == [2.0, 5.0, 2.0, 7.0]
    third = 1 / 3
    shares = {"site-0": 1 + 0.5 + third, "site-1": 1 + 0.5 + third, "site-2": third}
    assert got.weights == pytest.approx({site: share / 4 for site, share in shares.items()})


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"name": "none"}, 1),
        ({"name": "norm_bound"}, 3),
        ({"name": "norm_bound", "limit": 2.0}, 1),
        ({"name": "median", "hostile": 2}, 5),
        ({"name": "trimmed_mean", "hostile": 0}, 1),
        ({"name": "krum"}, 5),
        ({"name": "krum", "keep": 7}, 8),
    ],
)
def test_fewer_updates_than_the_rule_needs_are_refused(tmp_path, settings, least):
    chosen = RobustSettings.of(settings)
    assert chosen.least == least
    combining(chosen)(accepted(tmp_path, updates(least)))
    if least > 1:
        with pytest.raises(QuorumError, match=f"needs {least} updates, there are {least - 1}"):
            combining(chosen)(accepted(tmp_path, updates(least - 1)))
