"""What single patients lose: the page is that of the stored figures, and the attacks work where they must."""

import pytest
from benchmarks import leaks

from fedretina.storage import read_json


def test_the_governance_page_says_what_is_stored():
    page = leaks.PAGE.read_text(encoding="utf-8")
    assert leaks.render(page, read_json(leaks.STORED)) == page


@pytest.mark.slow
def test_a_small_study_finds_who_is_alone_and_no_one_under_much_noise(tmp_path, monkeypatch):
    monkeypatch.setattr(leaks, "_MULTIPLIERS", (None, 50.0))
    monkeypatch.setattr(leaks, "_PATIENTS", (1, 10))
    monkeypatch.setattr(leaks, "_HEADS", (10,))
    monkeypatch.setattr(leaks, "_BATCHES", (1, 8))
    found = leaks.measure(tmp_path, images=64, repeats=60)
    sums = {(one["attack"], one["patients"], one["multiplier"]): one["mean"] for one in found["sums"]}
    assert sums["mean", 1, None] > 0.8  # a sum of one is the person, less half of the other one at the site
    assert 0.5 < sums["mean", 10, None] < 1.0
    assert sums["second", 10, None] > 0.95  # ten images of 385 numbers span little, and only they lie in it
    assert all(abs(sums[attack, 10, 50.0] - 0.5) < 0.1 for attack in ("mean", "second"))
    alone, among = (one["mean"] for one in found["gradients"])
    assert alone == pytest.approx(1.0)
    assert among < 0.9
    assert found["heads"][0]["mean"] > 0.5
    assert leaks.render(f"{leaks.BEGIN}{leaks.END}", found).count("\n|---|") == 3
