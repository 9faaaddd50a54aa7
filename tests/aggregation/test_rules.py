import math

import pytest
from pydantic import ValidationError

from fedretina.aggregation.weights import weighing
from fedretina.settings.aggregation import AggregationSettings, RuleSettings


def weights(rule, **scalars):
    return weighing(RuleSettings.of(rule))(scalars)


def test_uaw_is_the_softmax_of_theta():
    got = weights("uaw", a={"theta": 0.2}, b={"theta": 0.9}, c={"theta": 0.5})
    raised = {site: math.exp(theta) for site, theta in {"a": 0.2, "b": 0.9, "c": 0.5}.items()}
    for site, value in raised.items():
        assert got[site] == pytest.approx(value / sum(raised.values()), rel=1e-12)


def test_uaw_oracles():
    even = weights("uaw", **{f"s{i}": {"theta": 0.37} for i in range(5)})
    assert all(value == pytest.approx(0.2) for value in even.values())
    one = weights("uaw", a={"theta": 1.0}, **{f"s{i}": {"theta": 0.0} for i in range(4)})
    assert one["a"] == pytest.approx(0.4046, abs=5e-5)
    assert weights("uaw", only={"theta": 0.7}) == {"only": 1.0}


def test_uaw_temperature_sharpens_and_stays_finite():
    soft = weights("uaw", a={"theta": 0.9}, b={"theta": 0.1})["a"]
    sharp = weights({"name": "uaw", "temperature": 0.1}, a={"theta": 0.9}, b={"theta": 0.1})["a"]
    assert soft < sharp < 1
    assert sharp == pytest.approx(1 / (1 + math.exp(-8)))
    assert weights({"name": "uaw", "temperature": 1e-3}, a={"theta": 2.0}, b={"theta": 0.0})["a"] == pytest.approx(1.0)


def test_samples_and_uniform():
    assert weights("samples", a={"images": 30}, b={"images": 10}) == {"a": 0.75, "b": 0.25}
    assert weights("uniform", a={}, b={}, c={}, d={})["c"] == 0.25


@pytest.mark.parametrize("rule", [name for name, one in RuleSettings.choices().items() if not one.personal])
def test_weights_sum_to_one_whatever_the_order(rule):
    scalars = {f"s{i}": {"theta": 0.1 * i + 0.05, "images": 10.0 + i} for i in range(7)}
    got = weights(rule, **scalars)
    assert sum(got.values()) == pytest.approx(1)
    assert got == weights(rule, **dict(reversed(scalars.items())))


@pytest.mark.parametrize("rule", ["samples", "uaw"])
@pytest.mark.parametrize("name", ["trimmed_mean", "median", "krum"])
def test_rules_that_count_sites_alike_ask_for_uniform_weights(rule, name):
    with pytest.raises(ValidationError, match=r"set rule to 'uniform', or robust.name to 'norm_bound'"):
        AggregationSettings(rule=rule, robust={"name": name})
    assert AggregationSettings(rule="uniform", robust={"name": name}).robust.name == name
    assert AggregationSettings(rule=rule, robust={"name": "norm_bound"}).rule.name == rule


@pytest.mark.parametrize("name", ["norm_bound", "median"])
def test_a_model_a_site_and_a_robust_rule_exclude_each_other(name):
    with pytest.raises(ValidationError, match="choose another of the two"):
        AggregationSettings(rule="similarity", robust={"name": name})
