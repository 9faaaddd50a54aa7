"""The partition of a network's state into what travels and what stays, chosen by module."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedretina.errors import SettingsError
from fedretina.exchange.encryption import sealed_bytes
from fedretina.exchange.payload import Tensors
from fedretina.settings.exchange import ExchangeSettings, Kind
from fedretina.settings.experiment import Experiment
from fedretina.settings.scalars import Task

if TYPE_CHECKING:  # networks stand on this folder
    from fedretina.networks.network import Network

CONTROL = "control:"
"""Prefix of the control that goes beside a parameter."""
KEY = "key:"
"""Prefix of what travels of a key network, beside the encoder and projector that it follows."""
STATISTIC, MEAN, VARIANCE = "statistic:", ".mean", ".variance"
"""Prefix and endings of what a site says of its activations."""
VARIANCES = ("running_var", VARIANCE)
"""Endings of the keys of variances: BatchNorm's running ones, and those that a site says of its activations."""
GRAM, MOMENT = "calibration:gram", "calibration:moment"
"""What a site says of its features once, for temperatures per image."""
SUMS = "sums:"
"""Prefix of the sums over features that a site sends once, and of their total (`analytic.sums`)."""
CONTRAST = "contrast"
"""The network's part that only label-free training has."""
_CALIBRATOR = "calibrator"
_GATE = "gate"
_FOLLOWED = ("encoder.", f"{CONTRAST}.projector.")
_PARTS = {
    "encoder": Kind.ENCODER,
    "head": Kind.HEAD,
    "exits": Kind.EXIT,
    "projector": Kind.PROJECTOR,
    CONTRAST: Kind.PROJECTOR,
    _CALIBRATOR: Kind.CALIBRATION,
    _GATE: Kind.HEAD,
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
    "bias": frozenset[Kind](),  # but see `_last_biases`
    "exits": frozenset({Kind.EXIT}),
    "head": frozenset({Kind.HEAD, Kind.EXIT}),
    "everything": frozenset(Kind),
}
_PARAMETER = 1e6
_SQUARE = _PARAMETER**2
_SUM = _SQUARE * 1e6
_LARGEST: Mapping[Kind, float] = {Kind.STATISTIC: _SQUARE, Kind.CALIBRATION: _SUM, Kind.SUMS: _SUM}


_FORM = 4096  # bytes that encoding may add to a tensor where it saves none


class StepKeys(NamedTuple):
    """What of the network goes both ways in one kind of training step.

    Attributes:
        shared: Keys of the network, sorted.
        parameters: Those of them that are parameters, not buffers.
        controls: Keys of the controls beside these, sorted.
        keys: Keys of the key network beside them, sorted.
    """

    shared: tuple[str, ...]
    parameters: tuple[str, ...]
    controls: tuple[str, ...]
    keys: tuple[str, ...] = ()

    @property
    def mixed(self) -> tuple[str, ...]:
        """What the server takes the weighted mean of."""
        return (*self.shared, *self.keys)

    @property
    def travelling(self) -> tuple[str, ...]:
        """All keys that the step sends, both ways."""
        return (*self.shared, *self.controls, *self.keys)


@dataclass(frozen=True)
class Partition:
    """What travels and what stays of one network, fixed for a run.

    Attributes:
        kinds: The kind of every key of the network's `state_dict`, and of the controls.
        shared: The keys of the network that travel, sorted.
        personal: All other keys of the network, sorted.
        parameters: The shared keys that are parameters, not buffers.
        controls: Keys of the controls that travel beside them, sorted; none without such a correction.
        statistics: Keys of the activations' statistics that a site sends once; none without such an aggregation.
        moments: Keys of the sums of features that a site sends once, after training; none without a calibrator.
        calibrator: Keys of the calibrator, which come down once, at the end; they count as personal.
        shapes: Shapes of all keys that a site may send or be sent.
        dtypes: Their dtypes.
        sizes: For every key, how many numbers and how many bytes it holds.
        sealed: The shared keys, or those of sums, that travel encrypted, sorted; their shapes and dtypes are those of
            what is inside.
        keys: Keys of the key network's tensors that travel in label-free training, sorted; none unless it is averaged.
        frozen: Keys of the network that are neither shared nor personal, sorted: both ends have them from the weights
            that the run starts with, and they never change.
        sums: Keys of the sums over features, which go up once and come down as their total; none in a run that trains.
    """

    kinds: Mapping[str, Kind]
    shared: tuple[str, ...]
    personal: tuple[str, ...]
    parameters: tuple[str, ...]
    controls: tuple[str, ...]
    statistics: tuple[str, ...]
    moments: tuple[str, ...]
    calibrator: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, torch.dtype]
    sizes: Mapping[str, tuple[int, int]]
    sealed: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()

    @property
    def travelling(self) -> tuple[str, ...]:
        """All keys that any training step sends, both ways."""
        return (*self.shared, *self.controls, *self.keys)

    def moving(self, task: Task) -> StepKeys:
        """What of the network a task moves: label-free training the encoder and its contrast layers, all else the rest.

        Where there are no contrast layers, every task but the label-free one moves all that travels.
        """

        def moves(key: str) -> bool:
            part = key.removeprefix(CONTROL).partition(".")[0]
            return part in ("encoder", CONTRAST) if task == "pretrain" else part != CONTRAST

        shared, parameters, controls = (
            tuple(filter(moves, keys)) for keys in (self.shared, self.parameters, self.controls)
        )
        return StepKeys(shared, parameters, controls, self.keys if task == "pretrain" else ())

    def sent(self, task: Task) -> tuple[str, ...]:
        """Keys that a site's answer to a task holds."""
        if task in ("train", "pretrain"):
            return self.moving(task).travelling
        return {"prepare": self.statistics, "calibrate": self.moments, "sums": self.sums}.get(task, ())

    @property
    def sendable(self) -> tuple[str, ...]:
        """All keys that a site ever sends."""
        return (*self.travelling, *self.statistics, *self.moments, *self.sums)

    @property
    def receivable(self) -> tuple[str, ...]:
        """All keys that a site is ever sent."""
        return (*self.travelling, *self.calibrator, *self.sums)

    def most_bytes(self, keys: Collection[str]) -> int:
        """Most bytes that a message of these tensors can have, whatever form they travel in.

        Args:
            keys: Their keys, `sendable` or `receivable`.
        """
        sealed = set(self.sealed)
        numbers = ((key, self.sizes[key]) for key in keys)
        return sum(sealed_bytes(n) if key in sealed else size + _FORM for key, (n, size) in numbers)

    def shared_kinds(self) -> frozenset[Kind]:
        """Return the kinds that travel."""
        return frozenset(self.kinds[key] for key in self.sendable)

    def by_kind(self) -> dict[str, dict[str, Any]]:
        """Tensors and numbers of each kind, told apart by what becomes of it.

        It travels, as "encoder"; or it stays and trains, as "norm, at home"; or it rests, as "encoder, frozen".
        """
        sums: dict[str, dict[str, Any]] = {}
        for way, keys in (("", self.sendable), (", at home", self.personal), (", frozen", self.frozen)):
            travels = not way
            for key in keys:
                name = f"{self.kinds[key].value}{way}"
                entry = sums.setdefault(name, {"tensors": 0, "values": 0, "travels": travels})
                entry["tensors"] += 1
                entry["values"] += self.sizes[key][0]
        return dict(sorted(sums.items()))

    def digest(self) -> str:
        """Return the sha256 (64 hex digits) of the travelling keys with their kinds, shapes and dtypes.

        It does not depend on what stays: sites with different grades agree when the head is personal.
        """
        rows = [[k, self.kinds[k], self.shapes[k], str(self.dtypes[k])] for k in self.sendable]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()

    def table(self) -> str:
        """Return a printable summary: each kind's tensors, numbers and bytes; it travels, stays, or is frozen."""
        ways = {"travels": self.sendable, "stays": self.personal, "frozen": self.frozen}
        sums: dict[tuple[str, str], list[int]] = {}
        for way, keys in ways.items():
            for key in keys:
                numbers, size = self.sizes[key]
                for name in (self.kinds[key].value, "all"):
                    row = sums.setdefault((name, way), [0, 0, 0])
                    row[:] = row[0] + 1, row[1] + numbers, row[2] + size
        order = [*(kind.value for kind in Kind), "all"]
        lines = [f"{'kind':<10} {'':<8}{'tensors':>8} {'numbers':>12} {'bytes':>13}"]
        for name, way in sorted(sums, key=lambda row: (order.index(row[0]), list(ways).index(row[1]))):
            tensors, numbers, size = sums[name, way]
            lines.append(f"{name:<10} {way:<8}{tensors:>8} {numbers:>12,} {size:>13,}")
        return "\n".join(lines)


def partition_of(experiment: Experiment, net: Network, encrypted: bool = False) -> Partition:
    """What travels and what stays of the network of a run, the correction's controls included; see `partition`.

    Args:
        experiment: The run's settings.
        net: Its network.
        encrypted: Whether this end has the federation's keys: then it takes sums under encryption alone.

    Raises:
        SettingsError: Nothing of the network travels although the run's settings mean it to; or as `partition`.
    """
    found = partition(
        net,
        experiment.exchange,
        experiment.correction.travels,
        experiment.aggregation.personal,
        experiment.keys_travel,
        net.frozen_keys(),
        _sums(experiment, net.encoder.features),
        encrypted,
    )
    if found.frozen and not found.shared and experiment.exchange.personal != "everything":
        raise SettingsError(
            f"network.frozen is {experiment.network.frozen}, and what is not frozen stays at the sites, so they would "
            "learn nothing from each other: freeze fewer stages, let the head travel (exchange.personal: nothing, with "
            "grades or classes), or choose a row that exchanges nothing, such as singleset."
        )
    return found


def partition(
    net: nn.Module,
    settings: ExchangeSettings,
    controls: bool = False,
    statistics: bool = False,
    keys: bool = False,
    frozen: Collection[str] = (),
    sums: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    encrypted: bool = False,
) -> Partition:
    """Divide the state of a network; one on the meta device will do.

    The kind of a key follows from the network's part (encoder, head, exits, projector) and, in the encoder,
    from the module that owns the key. The BatchNorm policy holds for all parts that travel. Owners are found
    by their exact name: a search by prefix would take `bn10` for a child of `bn1`.

    Args:
        net: A network whose children are `encoder`, and if it has them `head`, `exits`, `projector`, `contrast`,
            `calibrator` and `gate`.
        settings: What is personal.
        controls: Whether the correction sends a control beside each parameter that travels.
        statistics: Whether sites send the mean and variance of what enters each BatchNorm of the encoder.
        keys: Whether a key network's tensors travel beside those of the encoder and the projector that do, of the same
            kinds as theirs.
        frozen: Keys of the state that neither travel nor change.
        sums: Shapes of the sums over features that go up once, and whose total comes down, by key.
        encrypted: Whether the sums travel encrypted.

    Raises:
        SettingsError: A part is unknown, an entry of the state is no tensor, or the policy "none" meets a
            BatchNorm.
    """
    kinds: dict[str, Kind] = {}
    stays: dict[str, bool] = {}
    state: dict[str, Tensor] = net.state_dict()
    owners = dict(net.named_modules(remove_duplicate=False))
    biases = _last_biases(net) if settings.personal == "bias" else ()
    for key, value in state.items():
        part = _part(key, value)
        owner, _, leaf = key.rpartition(".")
        role = _role(owners.get(owner), leaf)
        kinds[key] = role or part if part is Kind.ENCODER else part
        home = part is Kind.CALIBRATION
        home = home or part in _AT_HOME[settings.personal] or key in biases
        home = home or key.startswith(f"{_GATE}.")  # it speaks of a site's own images, whatever else travels
        if settings.batchnorm == "none" and role and key not in frozen and (part is Kind.ENCODER or not home):
            raise SettingsError(
                f'The BatchNorm policy "none" is for networks without BatchNorm, but {owner} is one; choose '
                '"local_all", "local_stats" or "shared_all", or a network without BatchNorm.'
            )
        by_policy = "bn" in key if settings.bn_match == "name" else role in _STAYS[settings.batchnorm]
        stays[key] = home or by_policy
    shared = tuple(sorted(k for k in state if not stays[k] and k not in frozen))
    parameters = tuple(sorted(dict(net.named_parameters()).keys() & set(shared)))
    beside = {f"{CONTROL}{key}": state[key] for key in parameters} if controls else {}
    following = [key for key in shared if keys and key.startswith(_FOLLOWED)]
    followers = {f"{KEY}{key}": state[key] for key in following}
    once = _statistics({n: m for n, m in owners.items() if f"{n}.weight" not in frozen}) if statistics else {}
    calibrator = tuple(sorted(key for key in state if kinds[key] is Kind.CALIBRATION))
    last = _moments(state[f"{_CALIBRATOR}.weight"].numel()) if calibrator else {}
    summed = {key: torch.empty(shape, dtype=torch.float64, device="meta") for key, shape in sorted(sums.items())}
    sent = {**{key: state[key] for key in shared}, **beside, **followers, **once, **last, **summed}
    wire = {**sent, **{key: state[key] for key in calibrator}}
    return Partition(
        kinds={**kinds, **dict.fromkeys(beside, Kind.CONTROL), **dict.fromkeys(once, Kind.STATISTIC)}
        | dict.fromkeys(last, Kind.CALIBRATION)
        | dict.fromkeys(summed, Kind.SUMS)
        | {f"{KEY}{key}": kinds[key] for key in following},
        shared=shared,
        personal=tuple(sorted(k for k in state if stays[k] and k not in frozen)),
        parameters=parameters,
        controls=tuple(beside),
        statistics=tuple(once),
        moments=tuple(last),
        calibrator=calibrator,
        shapes={k: tuple(v.shape) for k, v in wire.items()},
        dtypes={k: v.dtype for k, v in wire.items()},
        sizes={k: (v.numel(), v.numel() * v.element_size()) for k, v in {**state, **sent}.items()},
        sealed=tuple(key for key in shared if settings.encrypt == kinds[key].value)
        + (tuple(summed) if encrypted else ()),
        keys=tuple(followers),
        frozen=tuple(sorted(frozen)),
        sums=tuple(summed),
    )


def _last_biases(net: nn.Module) -> frozenset[str]:
    """Keys of the biases that are added to the answers themselves: of the head's last layer and of each exit's."""
    children = dict(net.named_children())
    answering = {name: part for name, part in children.items() if name == "head"}
    if "exits" in children:
        answering |= {f"exits.{name}": part for name, part in children["exits"].named_children()}
    last = {name: [key for key, _ in part.named_parameters()][-1] for name, part in answering.items()}
    return frozenset(f"{name}.{key}" for name, key in last.items() if key.endswith("bias"))


def _statistics(owners: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    layers = {n: m.num_features for n, m in owners.items() if isinstance(m, _BatchNorm) and n.startswith("encoder.")}
    if not layers:
        raise SettingsError(
            "The aggregation compares BatchNorm statistics, but what trains of the encoder has no BatchNorm."
        )
    names = [f"{STATISTIC}{layer}{end}" for layer in layers for end in (MEAN, VARIANCE)]
    width = {name: layers[name.removeprefix(STATISTIC).rpartition(".")[0]] for name in names}
    return {name: torch.empty(width[name], device="meta") for name in sorted(names)}


def _sums(experiment: Experiment, features: int) -> dict[str, tuple[int, ...]]:
    settings, classes = experiment.sums, experiment.classes
    if settings is None or classes is None:
        return {}
    d = settings.width(features)
    shapes = {"counts": (len(classes),), "first": (len(classes), d)}
    shapes["second"] = (len(classes) if settings.balance else 1, d * (d + 1) // 2)  # upper triangles
    return {f"{SUMS}{name}": shape for name, shape in shapes.items()}


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


def largest(key: str, kind: Kind) -> float:
    """Largest size of a number under a key, both ways.

    Weights, gradients and control variates of a network that answers lie below 1000: 1e6 leaves room for one that is
    about to diverge. A variance is a square of what a network holds, so 1e12; calibration sums are sums of squares
    over images, so 1e18. All of them are so far below the largest float32, 3.4e38, that what the server adds up over a
    run's rounds stays below it too.
    """
    return _SQUARE if key.endswith(VARIANCES) else _LARGEST.get(kind, _PARAMETER)


def size_of(tensor: torch.Tensor) -> float:
    """Largest size of a tensor's values; 0 of an empty one, nan or inf where a value is not finite.

    One pass that writes nothing: a tenth of the time of `tensor.abs().max()`, at both ends and for every update.
    """
    if not tensor.numel():
        return 0.0
    least, most = tensor.aminmax()  # both are nan where one value is
    return max(abs(float(least)), abs(float(most)))


def negative_variance(key: str, tensor: torch.Tensor) -> bool:
    """Whether a variance is below 0, which no images have: BatchNorm and the server draw roots of it."""
    return key.endswith(VARIANCES) and bool((tensor < 0).any())


def absurd(tensors: Tensors, kinds: Mapping[str, Kind]) -> str | None:
    """What no model holds that can go on, of the first tensor with such a value in the order of the keys.

    That is a value that is not finite or beyond `largest`, or a negative variance.

    Args:
        tensors: By key; whole-number ones, and keys of no kind, are not looked at.
        kinds: The kind of every key.

    Returns:
        What it holds, for a sentence; None where there is none.
    """
    for key in sorted(tensors):
        if key in kinds and tensors[key].is_floating_point():
            size, most = size_of(tensors[key]), largest(key, kinds[key])
            if not math.isfinite(size) or size > most:
                return (
                    f"values out of all proportion ({kinds[key]} tensors: up to {size:.3g}, at most {most:g} is taken)"
                )
            if negative_variance(key, tensors[key]):
                return f"a negative variance ({kinds[key]} tensors), which no images have"
    return None
