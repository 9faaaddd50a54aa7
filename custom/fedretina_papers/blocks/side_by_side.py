"""A row's rounds at all hospitals at once: their small networks in one stack of tensors, a step of each in one call.

With a frozen encoder a step moves a few thousand weights, and what it costs is the calling, hospital by hospital. Here
the networks of all hospitals stand in one stack, `torch.func.vmap` sends a batch of each through its own, and one
backward pass and one step of Adam serve them all. Network, objective, order of the images, schedule, weights of the
mean and measure are the product's; the sums run in another order, so the result agrees with `train.trained` to
rounding, not in its bits (tests/papers/test_block_training.py compares the two).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from fedretina.aggregation.weights import weighing
from fedretina.data.site_data import SiteData, Split
from fedretina.errors import DivergedError
from fedretina.exchange.partition import Partition
from fedretina.exchange.payload import Tensors, tensors_bytes
from fedretina.local.supervised import batches, scheduled, summed_score
from fedretina.local.trainer import LocalTrainer
from fedretina.losses.objective import Clock, Objective, build_objective
from fedretina.networks.network import Network
from fedretina.seeds import reproducible_torch, seed_layers, torch_device
from fedretina.settings.correction import FedProxSettings, NoCorrectionSettings, ScaffoldSettings
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Plan, Step
from fedretina.settings.training import TrainingSettings
from fedretina_papers.blocks.train import Ran, trainers_of

_FIRST, _SECOND, _LEAST = 0.9, 0.999, 1e-8
"""Adam's decays and the number that keeps it from a division by zero, as torch has them."""


def goes_side_by_side(experiment: Experiment) -> bool:
    """Whether `trained_side_by_side` does all that a row's settings ask for.

    It leaves projectors to `trained`: of millions of weights a step costs more than its calls.
    """
    phase = experiment.phases[0]
    settings = phase.training or experiment.training
    mixing = experiment.aggregation
    return (
        experiment.network.frozen == "all"
        and {step.task for step in Plan.of(experiment)} <= {"train", "validate", "finalise"}
        and len(experiment.phases) == 1
        and phase.label_share == 1
        and settings.optimizer == "adam"
        and settings.optimizer_state == "keep"
        and settings.precision == "float32"
        and torch_device(settings).type == "cpu"
        and settings.clip_norm is None
        and not settings.stretches
        and not (experiment.network.calibrator or experiment.network.projector)
        and _corrects(experiment)
        and (mixing.rule.alike or mixing.rule.needs == {"images"})
        and not (mixing.personal or mixing.robust.guards or mixing.optimiser.remembers)
        and experiment.tune.epochs in ((0, settings.epochs) if experiment.tune.along else (0,))
        and experiment.tune.learning_rate is None
    )


def _corrects(experiment: Experiment) -> bool:
    asked = experiment.correction
    if isinstance(asked, ScaffoldSettings):
        return asked.update == "mean_grad" and asked.place == "gradient" and asked.eta_g == 1
    return isinstance(asked, NoCorrectionSettings | FedProxSettings)


class _Held(NamedTuple):
    """Images of a split of several hospitals, filled up to the longest.

    Attributes:
        rows: float32 [H, N, L].
        labels: int64 [H, N].
    """

    rows: Tensor
    labels: Tensor

    @classmethod
    def of(cls, splits: Sequence[Split]) -> _Held:
        """Put splits side by side."""
        most = max(len(split.labels) for split in splits)
        rows = torch.zeros(len(splits), most, splits[0].images.shape[1])
        labels = torch.zeros(len(splits), most, dtype=torch.int64)
        for at, split in enumerate(splits):
            rows[at, : len(split.labels)] = split.images.float()
            labels[at, : len(split.labels)] = split.labels
        return cls(rows, labels)


class _Sizes:
    """How large a correction is beside the raw gradient at the hospitals of a stack, as `CorrectionSize` has it of one.

    Attributes:
        ratios: Of each round that ended the sum of |correction| over its steps, over that of |raw gradient| [H].
    """

    def __init__(self, hospitals: int) -> None:
        self.ratios: list[Tensor] = []
        self._sums = torch.zeros(2, hospitals)

    def note(self, correction: Tensor, gradient: Tensor, moves: Tensor) -> None:
        """Add a step: two lengths, and which hospitals take it [H]."""
        self._sums += torch.stack([correction, gradient]) * moves

    def end(self) -> None:
        """End a round."""
        corrections, gradients = self._sums
        self.ratios.append(torch.where(gradients > 0, corrections / gradients, torch.zeros_like(gradients)))
        self._sums = torch.zeros_like(self._sums)


class _Variates:
    """SCAFFOLD's variates c_i of the hospitals of a stack, which become the mean of each round's raw gradients.

    Attributes:
        own: By key of a weight that travels [H, ...].
    """

    def __init__(self, weights: Tensors, keys: Sequence[str], most: float, sizes: _Sizes) -> None:
        self.own = {key: torch.zeros_like(weights[key]) for key in keys}
        self._most = most
        self._sizes = sizes
        self._toward: dict[str, Tensor] = {}
        self._gathered: dict[str, Tensor] = {}
        self._rates = torch.zeros(())

    def begin(self, control: Tensors) -> None:
        """Begin a round with the server's c."""
        self._toward = {key: control[key] - own for key, own in self.own.items()}
        self._gathered = {key: torch.zeros_like(own) for key, own in self.own.items()}
        self._rates = torch.zeros(len(next(iter(self.own.values()))))

    def correct(self, gradients: Tensors, rates: Tensor) -> dict[str, Tensor]:
        """Gather raw gradients and add c - c_i to them, no longer than the guard allows.

        Args:
            gradients: By key.
            rates: Of each hospital [H]; 0 where it has no batch left.
        """
        raw, toward = (_lengths([found[key] for key in self.own]) for found in (gradients, self._toward))
        scale = torch.where((raw > 0) & (toward > 0), (self._most * raw / toward).clamp(max=1), torch.ones_like(raw))
        self._rates += rates.float()
        self._sizes.note(toward, raw, rates > 0)
        corrected = dict(gradients)
        for key in self.own:
            shape = (-1, *(1 for _ in gradients[key].shape[1:]))
            self._gathered[key] += gradients[key] * rates.float().view(shape)
            corrected[key] = gradients[key] + self._toward[key] * scale.view(shape)
        return corrected

    def end(self) -> dict[str, Tensor]:
        """How each c_i has changed in the round."""
        change = {}
        for key, own in self.own.items():
            rates = self._rates.view(-1, *(1 for _ in own.shape[1:]))
            change[key] = torch.where(rates > 0, self._gathered[key] / rates - own, torch.zeros_like(own))
            self.own[key] = own + change[key]
        return change


def _lengths(tensors: Sequence[Tensor]) -> Tensor:
    """Length of all tensors together, hospital by hospital [H]."""
    total: Tensor = torch.stack([one.flatten(1).square().sum(1) for one in tensors]).sum(0)
    return total.sqrt()


class _Stack:
    """Models of several hospitals whose networks are one function of their weights, with Adam's moments.

    Attributes:
        weights: By key [H, ...].
        variates: SCAFFOLD's; None without.
    """

    def __init__(self, weights: Mapping[str, Tensor], settings: TrainingSettings, sizes: _Sizes | None = None) -> None:
        self.variates: _Variates | None = None
        self.weights = {key: one.clone().requires_grad_() for key, one in weights.items()}
        self._settings = settings
        self._sizes = sizes
        self._mean = {key: torch.zeros_like(one) for key, one in weights.items()}
        self._square = {key: torch.zeros_like(one) for key, one in weights.items()}
        self._steps = torch.zeros(len(next(iter(weights.values()))), dtype=torch.float64)

    def put(self, weights: Tensors) -> None:
        """Give every hospital the same value of some weights."""
        with torch.no_grad():
            for key, one in weights.items():
                self.weights[key].copy_(one.expand_as(self.weights[key]))

    def step(self, loss: Tensor, rates: Tensor, moves: Tensor, pull: float, anchor: Tensors) -> None:
        """One step of Adam at the hospitals that move.

        Args:
            loss: Sum of their losses.
            rates: Of each hospital [H].
            moves: Which move [H].
            pull: Of the proximal term.
            anchor: Where it pulls to, by key of the weights that it holds.
        """
        keys = list(self.weights)
        found: Sequence[Tensor | None] = torch.autograd.grad(
            loss, [self.weights[key] for key in keys], allow_unused=True
        )
        rest = None if bool(moves.all()) else moves
        if self.variates is not None:
            raw = {key: given for key, given in zip(keys, found, strict=True) if given is not None}
            corrected = self.variates.correct(raw, rates * moves)
            found = [corrected.get(key) for key in keys]
        self._steps += moves
        steps = self._steps.clamp(min=1)
        first, second = 1 - _FIRST**steps, 1 - _SECOND**steps
        # Adam's step, lr / first * m / (sqrt(v / second) + eps), with the bias of v taken out of the root.
        strides, least = (rates / first * second.sqrt()).float(), (_LEAST * second.sqrt()).float()
        with torch.no_grad():
            pulled = {key: given for key, given in zip(keys, found, strict=True) if given is not None and key in anchor}
            ways = {key: self.weights[key] - anchor[key] for key in pulled} if pull else {}
            if ways and self._sizes is not None:
                self._sizes.note(pull * _lengths([*ways.values()]), _lengths([*pulled.values()]), moves)
            for key, given in zip(keys, found, strict=True):
                if given is None:
                    continue
                weight, mean, square = self.weights[key], self._mean[key], self._square[key]
                gradient = given.add_(ways[key], alpha=pull) if key in ways else given
                if self._settings.weight_decay:
                    gradient = gradient.add(weight, alpha=self._settings.weight_decay)
                shape = (-1, *(1 for _ in weight.shape[1:]))
                held = None if rest is None else (mean.clone(), square.clone(), ~rest.view(shape))
                mean.lerp_(gradient, 1 - _FIRST)
                square.mul_(_SECOND).addcmul_(gradient, gradient, value=1 - _SECOND)
                moved = torch.sqrt(square).add_(least.view(shape)).reciprocal_().mul_(mean).mul_(strides.view(shape))
                if held is not None:  # who has no batch left rests, its moments too
                    before, beside, still = held
                    mean.copy_(torch.where(still, before, mean))
                    square.copy_(torch.where(still, beside, square))
                    moved.masked_fill_(still, 0.0)
                weight.sub_(moved)


class _Group:
    """Hospitals of one network.

    Attributes:
        names: Of the hospitals.
        model: The models that travel, or that a hospital has alone.
        own: The models that go along beside those (Ditto); None without.
        sizes: Of what corrects the models that travel; what pulls own ones is not told, as in a site's curves.
    """

    def __init__(
        self, trainers: Mapping[str, LocalTrainer], data: Mapping[str, SiteData], experiment: Experiment
    ) -> None:
        self.names = tuple(trainers)
        self.net: Network = next(iter(trainers.values())).model.net
        self._held = _Held.of([data[name].split("train") for name in self.names])
        self._counts = [data[name].counts["train"] for name in self.names]
        self._objective: Objective = build_objective(experiment.objective)
        self._settings = experiment.phases[0].training or experiment.training
        self._seed = experiment.seed
        self._keys = [key for key, _ in self.net.named_parameters()]
        self.sizes = _Sizes(len(self.names))
        self.model: _Stack
        self.own: _Stack | None = None

    def begin(self, weights: Sequence[Tensors], along: bool) -> None:
        """Start from the hospitals' own first weights."""
        stacked = {key: torch.stack([one[key] for one in weights]) for key in self._keys}
        self.model = _Stack(stacked, self._settings, self.sizes)
        self.own = _Stack(stacked, self._settings) if along else None

    def epochs(self, stack: _Stack, step: Step, pull: float, held: Sequence[str]) -> None:
        """The epochs of a round for a stack.

        Args:
            stack: Model or own model.
            step: The round.
            pull: Of a proximal term.
            held: Keys of the weights that it holds to what the round began with.

        Raises:
            DivergedError: A loss that is not finite.
        """
        settings = self._settings
        anchor = {key: stack.weights[key].detach().clone() for key in held} if pull else {}
        self._train(stack, step, pull, anchor, settings)
        self.sizes.end()

    def along(self, step: Step, pull: float, received: Tensors) -> None:
        """The epochs of a round for the models that go along, held to what the hospitals received."""
        assert self.own is not None
        anchor = {key: one.expand_as(self.own.weights[key]) for key, one in received.items()}
        self._train(self.own, step, pull, anchor, self._settings)

    def _train(self, stack: _Stack, step: Step, pull: float, anchor: Tensors, settings: TrainingSettings) -> None:
        net, phase = self.net, (step.phase, step.round)
        net.train()
        losses = []
        for epoch in range(settings.epochs):
            orders = [
                list(batches(count, settings, (self._seed, name, *phase, epoch)))
                for name, count in zip(self.names, self._counts, strict=True)
            ]
            seed_layers(torch.device("cpu"), (self._seed, *self.names, *phase, epoch, "dropout"))
            for number in range(max(map(len, orders))):
                picked = [order[number] if number < len(order) else np.zeros(0, dtype=np.int64) for order in orders]
                sizes = torch.tensor([len(one) for one in picked])
                clocks = [
                    Clock(step.round, step.rounds, epoch, settings.epochs, number, len(order)) for order in orders
                ]
                rates = torch.tensor([scheduled(settings, clock) for clock in clocks], dtype=torch.float64)
                lead = max(clocks, key=lambda clock: clock.steps)
                loss = self._loss(stack.weights, picked, sizes, lead)
                losses.append(loss.detach())
                stack.step(loss, rates, sizes > 0, pull, anchor)
        if not bool(torch.isfinite(torch.stack(losses)).all()):
            raise DivergedError(f"the loss is not finite in {step.name}: lower training.learning_rate.")

    def _loss(self, weights: Tensors, picked: Sequence[np.ndarray], sizes: Tensor, clock: Clock) -> Tensor:
        """Sum over the hospitals of the mean loss of their batches; a hospital without a batch adds nothing."""
        widest = int(sizes.max())
        rows = torch.zeros(len(picked), widest, dtype=torch.int64)
        for at, one in enumerate(picked):
            rows[at, : len(one)] = torch.from_numpy(one)
        hospital = torch.arange(len(picked)).unsqueeze(1)
        images, labels = self._held.rows[hospital, rows], self._held.labels[hospital, rows]
        net, objective = self.net, self._objective

        def whole(own: Tensors, seen: Tensor, graded: Tensor) -> Tensor:
            return summed_score(objective, functional_call(net, dict(own), (seen,)), graded, clock)

        def some(own: Tensors, seen: Tensor, graded: Tensor, counted: Tensor) -> Tensor:
            def one(logits: Tensor, label: Tensor) -> Tensor:
                return summed_score(objective, logits.unsqueeze(0), label.unsqueeze(0), clock)

            each: Tensor = vmap(one)(functional_call(net, dict(own), (seen,)), graded)
            return (each * counted).sum()

        if bool((sizes == widest).all()):
            total: Tensor = vmap(whole, randomness="different")(weights, images, labels).sum()
            return total
        there = torch.arange(widest).unsqueeze(0) < sizes.unsqueeze(1)
        counted = there.float() / sizes.clamp(min=1).unsqueeze(1)
        part: Tensor = vmap(some, randomness="different")(weights, images, labels, counted).sum()
        return part


def trained_side_by_side(experiment: Experiment, hospitals: Mapping[str, SiteData]) -> Ran:
    """The rounds of a row, from its start to its last model; see `goes_side_by_side` for what it does.

    Args:
        experiment: The row's settings.
        hospitals: By name.

    Raises:
        DivergedError: A loss that is not finite.
    """
    trainers = trainers_of(experiment, hospitals)
    first = next(iter(trainers.values()))
    parts, begun = first.partition, first.model.net.state_dict()
    shared = {key: begun[key].clone() for key in parts.shared}
    plan = [step for step in Plan.of(experiment) if step.task == "train"]
    moving = parts.moving("train")
    kept = {name: trainer.initial(shared, plan[0]).tensors for name, trainer in trainers.items()}
    groups = [_Group(some, hospitals, experiment) for some in _alike(trainers, hospitals).values()]
    for group in groups:
        group.begin([{**shared, **kept[name]} for name in group.names], experiment.tune.along)
    correction = experiment.correction
    pull = correction.mu if isinstance(correction, FedProxSettings) else 0.0
    control: dict[str, Tensor] = {}
    if isinstance(correction, ScaffoldSettings):
        control = {key: torch.zeros_like(shared[key]) for key in moving.parameters}
        for group in groups:
            most = correction.max_ratio
            group.model.variates = _Variates(group.model.weights, moving.parameters, most, group.sizes)
    images = {name: {"images": float(data.counts["train"])} for name, data in hospitals.items()}
    weights = weighing(experiment.aggregation.rule)(images)
    sent = 0
    with reproducible_torch(experiment.training):
        for step in plan:
            for group in groups:
                group.model.put(shared)
                if group.model.variates is not None:
                    group.model.variates.begin(control)
                group.epochs(group.model, step, pull, moving.parameters)
                if group.own is not None:
                    group.along(step, experiment.tune.pull, {key: shared[key] for key in moving.parameters})
            sent += tensors_bytes(shared) + tensors_bytes(control)
            changes = [group.model.variates.end() for group in groups if group.model.variates is not None]
            for key in control:
                control[key] = control[key] + sum(one[key].sum(0) for one in changes) / len(hospitals)
            if parts.shared:
                shared = _mixed(groups, weights, parts)
    answers = {}
    for group in groups:
        stack = group.model if group.own is None else group.own
        for at, name in enumerate(group.names):
            own = {key: one[at].detach() for key, one in stack.weights.items()}
            if group.own is None:
                own |= shared
            trainer, data = trainers[name], hospitals[name]
            part = {key: one for key, one in own.items() if key not in parts.shared or group.own is not None}
            answers[name] = {
                split: trainer.answers(shared, part, data.split(split)).logits for split in ("val", "test")
            }
    moved = sent * len(hospitals)
    ratios = torch.cat([one for group in groups for one in group.sizes.ratios])
    ratio = median(ratios.tolist()) if pull or control else None
    return Ran(answers, moved, moved, correction=ratio)


def _alike(
    trainers: Mapping[str, LocalTrainer], hospitals: Mapping[str, SiteData]
) -> dict[object, dict[str, LocalTrainer]]:
    """Hospitals by what their network is: how many grades it answers, and how it reads them off shared classes."""
    found: dict[object, dict[str, LocalTrainer]] = {}
    for name, trainer in trainers.items():
        space = trainer.model.net.space
        kind = (hospitals[name].scheme.num_classes, None if space is None else space.cover)
        found.setdefault(kind, {})[name] = trainer
    return found


def _mixed(groups: Sequence[_Group], weights: Mapping[str, float], parts: Partition) -> dict[str, Tensor]:
    found = {}
    for key in parts.shared:
        total = sum(
            torch.einsum(
                "h,h...->...",
                torch.tensor([weights[name] for name in group.names], dtype=torch.float64),
                group.model.weights[key].detach().double(),
            )
            for group in groups
        )
        assert isinstance(total, Tensor)
        found[key] = total.to(parts.dtypes[key])
    return found
