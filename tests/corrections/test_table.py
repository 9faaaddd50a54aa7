"""What a correction can do is said by its settings, which know no torch, and held to its class."""

from typing import Literal

import pytest

from fedretina.corrections.correction import Correction, build_correction, correction
from fedretina.errors import SettingsError
from fedretina.settings.choice import Choice
from fedretina.settings.correction import CorrectionSettings
from fedretina.settings.experiment import Experiment
from fedretina.settings.training import OptimiserSettings


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
    chosen = CorrectionSettings.of(name)
    assert (chosen.travels, chosen.has_server_half) == (travels, server)
    built = build_correction(chosen, OptimiserSettings())
    assert (type(built).server is not Correction.server) == server


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


def test_a_class_that_does_more_than_its_settings_say_is_refused():
    class QuietSettings(Choice):  # on no axis of the product, whose methods other tests list
        name: Literal["quiet_momentum"] = "quiet_momentum"

    with pytest.raises(SettingsError, match="Momentum has a server half, but its settings do not say so"):

        @correction(QuietSettings)
        class Momentum(Correction):
            def server(self, round_):
                return round_.mixed

    with pytest.raises(SettingsError, match="nothing is registered for QuietSettings"):
        build_correction(QuietSettings(), OptimiserSettings())
