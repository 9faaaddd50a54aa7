"""Which card a site's process takes, and how much of it; what the CPU can tell of it."""

import os

import pytest
import torch
from pydantic import ValidationError

from fedretina.errors import DataError, SettingsError
from fedretina.local.gpu import SHOWN, take_gpu
from fedretina.settings.gpu import GpuSettings
from fedretina.settings.site import read_site_file
from fedretina.settings.training import TrainingSettings


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    return os.environ


def said(environment):
    return {name: value for name, value in environment.items() if name.startswith("CUDA")}


@pytest.fixture
def shares(monkeypatch):
    """A card that is not there, and what torch is told to take of it."""
    told = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", told.append)
    return told


def test_a_site_that_says_nothing_changes_nothing(environment, shares):
    take_gpu(GpuSettings(), TrainingSettings())
    assert said(environment) == {}
    assert shares == []


@pytest.mark.parametrize(
    ("shown", "card", "seen"),
    [(None, 1, "1"), ("1", 1, "1"), ("0,1", 1, "1"), ("GPU-a,GPU-b", "GPU-b", "GPU-b"), (None, "GPU-a", "GPU-a")],
)
def test_the_process_sees_the_named_card_alone_however_often_it_asks(shown, card, seen, environment):
    environment.update({} if shown is None else {SHOWN: shown})
    for _ in range(2):
        take_gpu(GpuSettings(card=card), TrainingSettings(device="cpu"))
        assert environment[SHOWN] == seen


@pytest.mark.parametrize("shown", ["0", "", "0,2"])
def test_a_card_that_something_else_did_not_show_is_refused(shown, environment):
    environment[SHOWN] = shown
    with pytest.raises(SettingsError, match="out where FLARE, a container") as raised:
        take_gpu(GpuSettings(card=1), TrainingSettings())
    assert raised.value.told == "the site's own settings name a card that it cannot have: its log says more."
    assert said(environment) == {SHOWN: shown}


def test_a_card_that_is_named_too_late_is_refused(environment, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(SettingsError, match="has begun to use another card"):
        take_gpu(GpuSettings(card=1), TrainingSettings())
    assert said(environment) == {}


def test_the_share_is_torchs_cap_where_the_job_uses_the_card(environment, shares):
    half = GpuSettings(memory_share=0.5)
    take_gpu(half, TrainingSettings(device="cpu"))
    assert shares == []
    take_gpu(half, TrainingSettings())
    assert shares == [0.5]


def test_a_site_file_says_it_and_what_cannot_be_is_refused(tmp_path):
    file = tmp_path / "site.yaml"
    file.write_text("gpu: {card: 1, memory_share: 0.25}\n")
    assert read_site_file(file, "a").gpu == GpuSettings(card=1, memory_share=0.25)
    file.write_text("gpu: {share: 0.25}\n")
    with pytest.raises(DataError, match="share"):
        read_site_file(file, "a")
    for words in ({"memory_share": 0}, {"memory_share": 1.5}, {"card": -1}, {"card": ""}, {"card": "0,1"}):
        with pytest.raises(ValidationError):
            GpuSettings(**words)
