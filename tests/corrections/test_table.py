"""What a correction can do is said by its settings, which know no torch, and held to its class."""

from types import MappingProxyType
from typing import get_args

import pytest

from fedretina.corrections import settings
from fedretina.corrections.correction import Correction
from fedretina.errors import SettingsError
from fedretina.settings.correction import CorrectionName, CorrectionSettings
from fedretina.settings.experiment import Experiment
from fedretina.settings.training import OptimiserSettings


def test_every_name_has_its_class_and_its_own_settings():
    names = set(get_args(CorrectionName))
    assert set(settings.CORRECTIONS) == names
    assert names - {"none"} == set(CorrectionSettings.model_fields) - {"name"}


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
    chosen = CorrectionSettings(name=name)
    assert (chosen.travels, chosen.has_server_half) == (travels, server)
    assert isinstance(settings.build_correction(chosen, OptimiserSettings()), settings.CORRECTIONS[name])


@pytest.mark.parametrize(
    "words",
    [
        {"row": "feddyn", "quorum": 3, "aggregation": {"rule": "uniform", "robust": {"name": "median"}}},
        {"row": "fedap", "correction": {"name": "feddyn"}},
    ],
)
def test_a_server_half_is_kept_from_robust_rules_and_personal_models(words):
    with pytest.raises(SettingsError, match="correction 'feddyn'"):
        Experiment.resolve(words)


def test_a_class_that_does_more_than_its_settings_say_is_refused(monkeypatch):
    class Momentum(Correction):
        def server(self, round_):
            return round_.mixed

    patched = MappingProxyType({**settings.CORRECTIONS, "fedprox": Momentum})
    monkeypatch.setattr(settings, "CORRECTIONS", patched)
    with pytest.raises(SettingsError, match=r"'fedprox' does not do what its settings say: .* has_server_half to True"):
        settings.build_correction(CorrectionSettings(name="fedprox"), OptimiserSettings())
