"""What a correction can do is read off its class: no list has to be kept beside it."""

from types import MappingProxyType
from typing import get_args

import pytest

from fedretina.corrections import settings
from fedretina.corrections.correction import Correction
from fedretina.errors import SettingsError
from fedretina.experiment import Experiment


def test_every_name_has_its_class_and_its_own_settings():
    names = set(get_args(settings.CorrectionName))
    assert set(settings.CORRECTIONS) == names
    assert names - {"none"} == set(settings.CorrectionSettings.model_fields) - {"name"}


@pytest.mark.parametrize(
    ("name", "travels", "server"),
    [
        ("none", False, False),
        ("fedprox", False, False),
        ("scaffold", True, True),
        ("feddyn", False, True),
        ("feddc", True, True),
        ("moon", False, False),
    ],
)
def test_what_each_one_does(name, travels, server):
    chosen = settings.CorrectionSettings(name=name)
    assert (chosen.travels, chosen.has_server_half) == (travels, server)


@pytest.mark.parametrize(
    "words",
    [
        {"row": "fedprox", "quorum": 3, "aggregation": {"rule": "uniform", "robust": {"name": "median"}}},
        {"row": "fedap", "correction": {"name": "fedprox"}},
    ],
)
def test_a_new_server_half_is_kept_from_robust_rules_and_personal_models_without_a_list(monkeypatch, words):
    class Momentum(Correction):
        def server(self, round_):
            return round_.mixed

    Experiment.resolve(words)
    patched = MappingProxyType({**settings.CORRECTIONS, "fedprox": Momentum})
    monkeypatch.setattr(settings, "CORRECTIONS", patched)
    with pytest.raises(SettingsError, match="correction 'fedprox'"):
        Experiment.resolve(words)
