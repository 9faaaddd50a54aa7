"""The partition of a network's state into what travels and what stays, chosen by module."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedretina.errors import SettingsError
from fedretina.exchange.parts import CONTRAST, CONTROL, GRAM, KEY, MEAN, MOMENT, STATISTIC, VARIANCE, Partition
from fedretina.settings.exchange import ExchangeSettings, Kind
from fedretina.settings.experiment import Experiment

_CALIBRATOR = "calibrator"
_FOLLOWED = ("encoder.", f"{CONTRAST}.projector.")
_PARTS = {
    "encoder": Kind.ENCODER,
    "head": Kind.HEAD,
    "exits": Kind.EXIT,
    "projector": Kind.PROJECTOR,
    CONTRAST: Kind.PROJECTOR,
    _CALIBRATOR: Kind.CALIBRATION,
}


# The BatchNorm roles that stay under each policy; counters stay under all of them.
_STAYS = {
    "local_all": frozenset({Kind.NORM, Kind.STATISTIC, Kind.COUNTER}),
    "local_stats": frozenset({Kind.STATISTIC, Kind.COUNTER}),
    "shared_all": frozenset({Kind.COUNTER}),
    "none": frozenset({Kind.COUNTER}),
}


_AT_HOME = {
    "nothing": frozenset[Kind](),
    "exits": frozenset({Kind.EXIT}),
    "head": frozenset({Kind.HEAD, Kind.EXIT}),
    "everything": frozenset(Kind),
}


def partition_of(experiment: Experiment, net: nn.Module) -> Partition:
    """What travels and what stays of the network of a run, the correction's controls included; see `partition`."""
    return partition(
        net, experiment.exchange, experiment.correction.travels, experiment.aggregation.personal, experiment.keys_travel
    )


def partition(
    net: nn.Module,
    settings: ExchangeSettings,
    controls: bool = False,
    statistics: bool = False,
    keys: bool = False,
) -> Partition:
    """Divide the state of a network; one on the meta device will do.

    The kind of a key follows from the network's part (encoder, head, exits, projector) and, in the encoder,
    from the module that owns the key. The BatchNorm policy holds for all parts that travel. Owners are found
    by their exact name: a search by prefix would take `bn10` for a child of `bn1`.

    Args:
        net: A network whose children are `encoder`, and if it has them `head`, `exits`, `projector`, `contrast` and
            `calibrator`.
        settings: What is personal.
        controls: Whether the correction sends a control beside each parameter that travels.
        statistics: Whether sites send the mean and variance of what enters each BatchNorm of the encoder.
        keys: Whether a key network's tensors travel beside those of the encoder and the projector that do, of the same
            kinds as theirs.

    Raises:
        SettingsError: A part is unknown, an entry of the state is no tensor, or the policy "none" meets a
            BatchNorm.
    """
    kinds: dict[str, Kind] = {}
    stays: dict[str, bool] = {}
    state: dict[str, Tensor] = net.state_dict()
    owners = dict(net.named_modules(remove_duplicate=False))
    for key, value in state.items():
        part = _part(key, value)
        owner, _, leaf = key.rpartition(".")
        role = _role(owners.get(owner), leaf)
        kinds[key] = role or part if part is Kind.ENCODER else part
        home = part is Kind.CALIBRATION
        home = home or part in _AT_HOME[settings.personal]
        if settings.batchnorm == "none" and role and (part is Kind.ENCODER or not home):
            raise SettingsError(
                f'The BatchNorm policy "none" is for networks without BatchNorm, but {owner} is one; choose '
                '"local_all", "local_stats" or "shared_all", or a network without BatchNorm.'
            )
        by_policy = "bn" in key if settings.bn_match == "name" else role in _STAYS[settings.batchnorm]
        stays[key] = home or by_policy
    shared = tuple(sorted(k for k in state if not stays[k]))
    parameters = tuple(sorted(dict(net.named_parameters()).keys() & set(shared)))
    beside = {f"{CONTROL}{key}": state[key] for key in parameters} if controls else {}
    following = [key for key in shared if keys and key.startswith(_FOLLOWED)]
    followers = {f"{KEY}{key}": state[key] for key in following}
    once = _statistics(owners) if statistics else {}
    calibrator = tuple(sorted(key for key in state if kinds[key] is Kind.CALIBRATION))
    last = _moments(state[f"{_CALIBRATOR}.weight"].numel()) if calibrator else {}
    sent = {**{key: state[key] for key in shared}, **beside, **followers, **once, **last}
    wire = {**sent, **{key: state[key] for key in calibrator}}
    return Partition(
        kinds={**kinds, **dict.fromkeys(beside, Kind.CONTROL), **dict.fromkeys(once, Kind.STATISTIC)}
        | dict.fromkeys(last, Kind.CALIBRATION)
        | {f"{KEY}{key}": kinds[key] for key in following},
        shared=shared,
        personal=tuple(sorted(k for k in state if stays[k])),
        parameters=parameters,
        controls=tuple(beside),
        statistics=tuple(once),
        moments=tuple(last),
        calibrator=calibrator,
        shapes={k: tuple(v.shape) for k, v in wire.items()},
        dtypes={k: v.dtype for k, v in wire.items()},
        sizes={k: (v.numel(), v.numel() * v.element_size()) for k, v in {**state, **sent}.items()},
        sealed=tuple(key for key in shared if settings.encrypt == kinds[key].value),
        keys=tuple(followers),
    )


def _statistics(owners: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    layers = {n: m.num_features for n, m in owners.items() if isinstance(m, _BatchNorm) and n.startswith("encoder.")}
    if not layers:
        raise SettingsError("The aggregation compares BatchNorm statistics, but the encoder has no BatchNorm.")
    names = [f"{STATISTIC}{layer}{end}" for layer in layers for end in (MEAN, VARIANCE)]
    width = {name: layers[name.removeprefix(STATISTIC).rpartition(".")[0]] for name in names}
    return {name: torch.empty(width[name], device="meta") for name in sorted(names)}


def _moments(features: int) -> dict[str, Tensor]:
    wide = features + 1
    return {
        GRAM: torch.empty(wide, wide, dtype=torch.float64, device="meta"),
        MOMENT: torch.empty(wide, dtype=torch.float64, device="meta"),
    }


def _part(key: str, value: object) -> Kind:
    """Return the kind of the network's part that holds the key."""
    name = key.partition(".")[0]
    if name not in _PARTS or not isinstance(value, Tensor):
        raise SettingsError(
            f"The state of the network holds {key} ({type(value).__name__}), but a partition knows tensors of "
            f"the parts {', '.join(_PARTS)} only; put the layer into one of them."
        )
    return _PARTS[name]


def _role(owner: nn.Module | None, leaf: str) -> Kind | None:
    """Return norm, statistic or counter if the owner is a BatchNorm or the like, else None."""
    # A SyncBatchNorm is a _BatchNorm; an InstanceNorm without running statistics holds nothing of the site.
    instance = isinstance(owner, _InstanceNorm) and owner.running_mean is not None
    if owner is None or not (isinstance(owner, _BatchNorm) or instance):
        return None
    if leaf in dict(owner.named_parameters(recurse=False)):
        return Kind.NORM
    return Kind.COUNTER if leaf == "num_batches_tracked" else Kind.STATISTIC
