"""What every part must do, for the tests of whoever writes one: the same that the product's own parts are held to.

    from fedretina.testing import check_correction

    def test_it_is_a_correction(tmp_path):
        check_correction(HeavyBallSettings(beta=0.5), tmp_path)

A check trains a tiny network over three phantom hospitals with the real coordinator and the real sites, some seconds a
run, and raises an AssertionError with a sentence where the part does not do what it must.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from fedretina.aggregation.weights import Scalars, weighing
from fedretina.data.site_data import SiteData, load_site_data
from fedretina.loop import run_loop
from fedretina.networks.build import build_network, build_on_meta
from fedretina.settings.aggregation import RuleSettings
from fedretina.settings.choice import Choice
from fedretina.settings.correction import CorrectionSettings
from fedretina.settings.encoder import encoder_traits
from fedretina.settings.evaluation import EvaluationSettings
from fedretina.settings.experiment import Experiment
from fedretina.settings.network import NetworkSettings
from fedretina.settings.plan import merged
from fedretina.settings.site import SiteDataSettings
from fedretina.uncertainty.estimators import Prediction, build_estimator

_SITES = ("site-1", "site-2", "site-3")
_TINY: Mapping[str, Any] = {
    "phases": [{"name": "train", "rounds": 2}],
    "network": {"weights": {"source": "none"}},
    "training": {"batch_size": 8, "learning_rate": 0.05, "threads": 1, "device": "cpu"},
    "quorum": len(_SITES),  # a site whose update is refused ends the run
    "phantom_images": 24,
    "report": {"draws": 10, "page": False},
}
_SMALL: Mapping[str, int] = {"image_size": 32, "length": 128}
"""Sizes of samples, where a modality has such a setting."""


def check_correction(settings: CorrectionSettings, folder: Path) -> dict[str, Any]:
    """Hold a correction to what every one must do.

    It refuses numbers that are none, and under FedAvg passes `check_row`. There a control that travels must be one that
    its settings declare, or the coordinator refuses every update; registering it has compared its server half.

    Args:
        settings: The correction's.
        folder: An empty folder for the runs.

    Returns:
        The results of the run.

    Raises:
        AssertionError: It does not do what it must.
    """
    refuses_what_is_no_number(settings)
    return check_row({"row": "fedavg", "correction": settings.model_dump()}, folder)


def check_encoder(name: str, folder: Path) -> dict[str, Any]:
    """Hold an encoder to what every one must do.

    Its start follows from the seed alone; without memory it has the same tensors; each stage gives a map of its width,
    and the features have the length that it says; a gradient reaches every parameter; its exits are stages of it; and
    it passes `check_row` under FedEE, which has early exits.

    Args:
        name: What a job calls it.
        folder: An empty folder for the runs.

    Returns:
        The results of the run.

    Raises:
        AssertionError: It does not do what it must.
        SettingsError: There is no such encoder.
    """
    traits = encoder_traits(name)
    side = traits.patch * max(1, math.ceil(64 / traits.patch))
    shape = (3, 1, 128) if traits.signals else (3, side, side)
    settings = NetworkSettings(encoder=name)
    net, again, bare = build_network(settings, 3, 1), build_network(settings, 3, 1), build_on_meta(settings, 3)
    start = net.state_dict()
    require(
        all(torch.equal(value, start[key]) for key, value in again.state_dict().items()),
        "starts otherwise when it is built again with the same seed",
    )
    require(
        {key: value.shape for key, value in bare.state_dict().items()}
        == {key: value.shape for key, value in start.items()},
        "has other tensors without memory than with it",
    )
    encoder = net.encoder
    require(set(traits.exits) <= set(range(len(encoder.widths))), f"has no stages {list(traits.exits)} for exits")
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    maps, features = encoder.forward_stages(images), encoder(images)
    found = [tuple(one.shape[:2]) for one in maps]
    require(all(one.ndim == 4 for one in maps), "gives something else than maps [B, C, h, w] after its stages")
    require(found == [(2, width) for width in encoder.widths], f"gives maps {found}, but its widths say otherwise")
    require(features.shape == (2, encoder.features), f"gives features {tuple(features.shape)}")
    features.square().sum().backward()
    lost = [key for key, one in encoder.named_parameters() if one.grad is None or not bool(one.grad.isfinite().all())]
    require(not lost, f"lets no finite gradient reach {', '.join(lost[:3])}")
    kind = {"modality": "activity", "length": shape[2]} if traits.signals else {"image_size": side}
    augment = {"flip": False, "rotate_degrees": 0} if traits.signals else {}
    network = {"encoder": name, "exits": {"width": 8}}
    return check_row({"row": "fedee", "network": network, "images": kind, "augment": augment}, folder)


def check_rule(settings: RuleSettings, folder: Path) -> dict[str, Any]:
    """Hold a rule of weights to what every one must do.

    Its weights are positive, sum to 1 and do not depend on the order of the sites, also for a single site and where
    all sites say the same; it refuses numbers that are none, and passes `check_row` under FedUAA.

    Args:
        settings: The rule's.
        folder: An empty folder for the runs.

    Returns:
        The results of the run.

    Raises:
        AssertionError: It does not do what it must.
    """
    refuses_what_is_no_number(settings)
    spread: Scalars = {f"s{at}": {"theta": 0.1 * at + 0.05, "images": 10.0 + at} for at in range(7)}
    alike: Scalars = {name: {"theta": 0.3, "images": 20.0} for name in spread}
    for scalars in (spread, alike, {"s0": spread["s0"]}):
        weights = weighing(settings)(scalars)
        require(
            set(weights) == set(scalars), f"gives weights to {sorted(weights)}, but the sites are {sorted(scalars)}"
        )
        require(all(math.isfinite(one) and one > 0 for one in weights.values()), f"gives {weights}: not all above 0")
        require(
            math.isclose(sum(weights.values()), 1, abs_tol=1e-9), f"gives weights that sum to {sum(weights.values())}"
        )
        backwards = weighing(settings)(dict(reversed(list(scalars.items()))))
        require(backwards == weights, "gives other weights when the sites come in another order")
    return check_row({"row": "feduaa", "aggregation": {"rule": settings.model_dump()}}, folder)


def check_estimator(settings: EvaluationSettings, folder: Path) -> dict[str, Any]:
    """Hold an estimator to what every one must do.

    Its probabilities are finite and sum to 1, its uncertainty lies within the range that its settings say, for clear,
    even and very large logits of as many members as it reads; an image is answered alike alone and among others, and
    twice; it refuses numbers that are none, and passes `check_row` under FedUAA, under FedEE where it reads members, or
    under heads from sums where it reads a gate.

    Args:
        settings: The estimator's.
        folder: An empty folder for the runs.

    Returns:
        The results of the run.

    Raises:
        AssertionError: It does not do what it must.
    """
    refuses_what_is_no_number(settings)
    asked = build_estimator(settings)
    count = settings.most_members or settings.least_members + 1
    drawn = torch.from_numpy(np.random.default_rng(3).normal(0, 4, (24, count, 4)))
    logits = torch.cat([drawn, torch.zeros(1, count, 4), drawn[:4] * 1e4])
    answer, again = asked.predict(logits), asked.predict(logits)
    low, high = settings.range
    sums = answer.probabilities.sum(1)
    require(answer.probabilities.shape == (29, 4), f"gives probabilities {answer.probabilities.shape} for 29 x 4")
    require(bool((answer.probabilities >= 0).all()), "gives a probability below 0, or one that is no number")
    require(np.allclose(sums, 1, atol=1e-9), "gives probabilities that do not sum to 1")
    require(answer.uncertainty.shape == (29,), f"gives uncertainties {answer.uncertainty.shape} for 29 images")
    inside = (answer.uncertainty >= low) & (answer.uncertainty <= high)
    require(bool(inside.all()), f"gives an uncertainty outside {low} to {high}, or one that is no number")
    for first, second in zip(_arrays(answer), _arrays(again), strict=True):
        require(np.array_equal(first, second), "gives another answer the second time")
    for at in range(len(logits)):
        pairs = zip(_arrays(answer), _arrays(asked.predict(logits[at : at + 1])), strict=True)
        alike = all(np.allclose(all_[at], alone[0], atol=1e-9) for all_, alone in pairs)
        require(alike, "answers an image otherwise when others are asked with it")
    row = "analytic" if settings.gate is not None else "fedee" if settings.most_members is None else "feduaa"
    return check_row({"row": row, "evaluation": settings.model_dump()}, folder)


def _arrays(answer: Prediction) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return answer.probabilities, answer.uncertainty


def check_row(raw: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Hold a method, a row with whatever is laid over it, to what every one must do.

    It trains and finalises over three sites; every number of its results is finite; the same settings give the same
    bits again; and a run that is stopped in the midst of a round and begun again ends with the same bits.

    Args:
        raw: An experiment's settings, such as `{"row": "fedavg"}`; they are laid over tiny ones.
        folder: An empty folder for the runs.

    Returns:
        The results of the run.

    Raises:
        AssertionError: It does not do what it must.
        SettingsError: The settings cannot be used.
    """
    experiment = _tiny(raw)
    sites = {name: _site(name, experiment, folder) for name in _SITES}
    whole = run_loop(experiment, sites, folder, "whole")
    for place, value in _numbers(whole):
        require(math.isfinite(value), f"gives {value} at {place} of its results")
    if _figures(_stopped(experiment, sites, folder)) != _figures(whole):  # equal bits say both things at once
        again = run_loop(experiment, sites, folder, "again")
        require(_figures(again) == _figures(whole), "gives other bits when the same run is done again")
        require(False, "gives other bits when a run is stopped and goes on")
    return whole


class _StoppedError(Exception):
    """Stands for whatever ends a process."""


def _stopped(experiment: Experiment, sites: Mapping[str, SiteData], folder: Path) -> dict[str, Any]:
    """A run that ends before the second site of its second step is asked, and then goes on."""

    def stop(done: int, of: int) -> None:
        if done == len(sites) + 1:
            raise _StoppedError

    try:
        run_loop(experiment, sites, folder, "stopped", tell=stop)
    except _StoppedError:
        return run_loop(experiment, sites, folder, "stopped")
    raise AssertionError("the run asked fewer sites than it should.")


def _tiny(raw: Mapping[str, Any]) -> Experiment:
    asked = Experiment.resolve(raw)
    small = {name: least for name, least in _SMALL.items() if name in type(asked.images).model_fields}
    encoder = "signal_cnn" if asked.images.shape[1] == 1 else "efficientnet_lite0"
    phases = [
        {"name": phase.name, **({"rounds": 2} if phase.sums is None else {"sums": phase.sums.model_dump()})}
        for phase in asked.phases
    ]
    head = {} if asked.network.head.layout == "linear" else {"width": 16}
    base = merged(_TINY, {"images": small, "network": {"encoder": encoder, "head": head}, "phases": phases})
    return Experiment.resolve(merged(base, raw))


def _site(name: str, experiment: Experiment, folder: Path) -> SiteData:
    settings = SiteDataSettings(phantom_images=experiment.phantom_images)
    cache = folder / "cache" / name
    return load_site_data(name, settings, experiment.images, experiment.seed, cache, experiment.supervised)


def _figures(results: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in results.items() if name != "run"}


def _numbers(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _numbers(inner, f"{place}.{name}" if place else str(name))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inner, at in zip(value, itertools.count()):
            yield from _numbers(inner, f"{place}[{at}]")
    elif isinstance(value, float):
        yield place, value


def refuses_what_is_no_number(settings: Choice) -> None:
    """Raise AssertionError where a number of settings may be nan."""
    for name, value in settings.model_dump().items():
        if isinstance(value, float):
            try:
                type(settings).model_validate({**settings.model_dump(), name: math.nan})
            except ValidationError:
                continue
            raise AssertionError(f"{type(settings).__name__} takes {name}: nan; give the field a range.")


def require(holds: bool, fault: str) -> None:
    """Raise AssertionError with the fault of a part where something does not hold."""
    if not holds:
        raise AssertionError(f"the part {fault}.")
