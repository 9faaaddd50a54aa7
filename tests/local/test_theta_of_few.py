"""Theta of the validation split leaves only where enough patients stand behind that split."""

from dataclasses import replace

import pytest

from fedretina.loop import run_loop
from fedretina.storage import read_json


@pytest.mark.attack(
    "a hostile server",
    "read an uncertainty of few validation patients off theta",
    "a site whose validation has fewer patients than min_count sends the fallback",
)
@pytest.mark.parametrize(("rule", "fallback"), [("youden", "median_u"), ("official", None)])
def test_no_theta_of_few_validation_patients_leaves(tiny, phantoms, tmp_path, rule, fallback):
    theta = {"rule": rule, "source": "validation"} | ({"fallback": fallback, "min_errors": 1} if fallback else {})
    experiment = tiny(phases=[{"name": "train", "rounds": 1}], theta=theta)
    sites = phantoms(experiment, "site-1", "site-2")
    data = {"site-1": replace(sites["site-1"], min_count=1000), "site-2": replace(sites["site-2"], min_count=1)}
    scalars = run_loop(experiment, data, tmp_path, "r")["steps"][0]["scalars"]
    thetas = {name: read_json(tmp_path / "r" / name / "final" / "figures.json")["theta"] for name in data}
    assert thetas["site-1"] == {
        "value": 0.5,
        "youden": None,
        "reason": "too_few_patients",
        "errors": 0,
        "samples": 0,
    }
    assert scalars["site-1"]["theta"] == 0.5
    assert thetas["site-2"]["samples"] == len(data["site-2"].split("val").labels)
    assert thetas["site-2"]["reason"] != "too_few_patients"
    assert scalars["site-2"]["theta"] == thetas["site-2"]["value"] != 0.5
