"""What other people's parts are held to: `fedretina.testing` lets a good part pass and names what a bad one breaks."""

import numpy as np
import pytest

from fedretina.aggregation import weights
from fedretina.corrections.correction import LocalRound
from fedretina.corrections.fedprox import FedProx
from fedretina.data.modalities.oct import Oct
from fedretina.errors import DataError
from fedretina.settings.aggregation import SamplesSettings, UawSettings
from fedretina.settings.evaluation import SoftmaxSettings
from fedretina.settings.images import OctSettings
from fedretina.testing.methods import check_estimator, check_row, check_rule
from fedretina.testing.modality import check_modality
from fedretina.uncertainty.estimators import SoftmaxEstimator

ROW = {"row": "fedprox"}


def test_a_good_rule_passes(little_encoder, tmp_path):
    assert set(check_rule(UawSettings(temperature=0.5), tmp_path)["sites"]) == {"site-1", "site-2", "site-3"}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda scalars, settings: dict.fromkeys(scalars, 1.0), "weights that sum to 7"),
        (lambda scalars, settings: {next(iter(scalars)): 1.0}, "but the sites are"),
        (lambda scalars, settings: _first_takes_all(scalars), "when the sites come in another order"),
    ],
    ids=["sum", "missing", "order"],
)
def test_a_rule_that_breaks_a_demand_is_told_which(bad, said, monkeypatch, tmp_path):
    monkeypatch.setitem(weights.rule._parts, SamplesSettings, bad)
    with pytest.raises(AssertionError, match=said):
        check_rule(SamplesSettings(), tmp_path)


def _first_takes_all(scalars):
    """More for the site that is named first."""
    shares = range(len(scalars), 0, -1)
    return {site: share / sum(shares) for site, share in zip(scalars, shares, strict=True)}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda logits: (logits[:, -1].softmax(1) / 2, logits[:, 0, 0] * 0), "that do not sum to 1"),
        (lambda logits: (logits[:, -1].softmax(1), logits[:, 0, 0]), "an uncertainty outside 0.0 to 1.0"),
        (
            lambda logits: (logits[:, -1].softmax(1), logits[:, -1].softmax(0).amax(1)),
            "answers an image otherwise when others are asked with it",
        ),
    ],
    ids=["sum", "range", "alone"],
)
def test_an_estimator_that_breaks_a_demand_is_told_which(bad, said, monkeypatch, tmp_path):
    monkeypatch.setattr(SoftmaxEstimator, "answer", lambda self, logits: bad(logits))
    with pytest.raises(AssertionError, match=said):
        check_estimator(SoftmaxSettings(), tmp_path)


def test_a_good_row_passes(little_encoder, tmp_path):
    results = check_row({**ROW, "correction": {"mu": 0.1}}, tmp_path)
    assert set(results["sites"]) == {"site-1", "site-2", "site-3"}


@pytest.mark.slow
def test_a_row_that_remembers_in_memory_is_refused(little_encoder, monkeypatch, tmp_path):
    rounds = []

    class Remembers(LocalRound):
        """Pulls harder with each round of the process: a second run gives other bits."""

        def __init__(self, context):
            rounds.append(context)
            self._parameters = context.parameters

        def adjust(self, rates):
            for parameter in self._parameters.values():
                if parameter.grad is not None:
                    parameter.grad.mul_(1 + len(rounds) / 10)

    monkeypatch.setattr(FedProx, "begin", lambda self, context: Remembers(context))
    with pytest.raises(AssertionError, match="gives other bits when the same run is done again"):
        check_row(ROW, tmp_path)


def test_a_good_modality_passes(little_encoder, tmp_path):
    assert set(check_modality("oct", tmp_path)["sites"]) == {"site-1", "site-2", "site-3"}


OCT_PIPELINE = Oct.pipeline


def _of_any_file(settings):
    """A pipeline that knows no damaged file."""
    run = OCT_PIPELINE(settings)

    def one(path):
        try:
            return run(path)
        except DataError:
            return np.zeros(settings.shape, np.uint8)

    return one


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda settings: lambda path: OCT_PIPELINE(settings)(path)[:1], r"makes \(1, 64, 64\) of a file"),
        (lambda settings: lambda path: OCT_PIPELINE(settings)(path) / 255, "makes float64 of a file"),
        (_of_any_file, "reads a damaged file as if it were whole"),
    ],
    ids=["shape", "type", "damaged"],
)
def test_a_modality_that_breaks_a_demand_is_told_which(bad, said, monkeypatch, tmp_path):
    monkeypatch.setattr(Oct, "pipeline", staticmethod(bad))
    with pytest.raises(AssertionError, match=said):
        check_modality("oct", tmp_path)


@pytest.mark.parametrize(
    ("what", "value", "said"),
    [
        ("words", " ", "does not say what its samples are called"),
        ("augments", frozenset({"warp"}), "that there are not"),
    ],
)
def test_settings_of_a_modality_that_say_too_little_are_told(what, value, said, monkeypatch, tmp_path):
    monkeypatch.setattr(OctSettings, what, value)
    with pytest.raises(AssertionError, match=said):
        check_modality("oct", tmp_path)
