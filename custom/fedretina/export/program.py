"""All that decides an answer as one function of pixels: scaling, network, estimator, temperature, referral and gate.

What leaves is this and no bare network, so that nobody gets a grade that the gate would have stopped: the grade is then
-1, and the numbers beside it are no numbers. What is done with a photograph before, `data.modalities` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedretina.data.check.limits import COLOURED
from fedretina.errors import SettingsError
from fedretina.gate.appearance import Appearance, measured
from fedretina.gate.gate import Gate, Look, seen_inside
from fedretina.networks.dropout import answered_with_features
from fedretina.prediction.predictor import NOT_FINITE, Predictor
from fedretina.seeds import reproducible_torch
from fedretina.uncertainty.referral import ReferralReason

INPUT = "images"
MARGIN = 1e-5
"""An answer so near to a threshold is referred: programs may differ in the last digits, and must not then pass it."""
MARGIN_SHARE = 0.01
"""No wider than this share of the threshold: the digits of a small doubt differ by parts of itself, and a margin as
wide as the threshold would refer everybody."""
WHY: tuple[ReferralReason, ...] = ("referable grade", "ungradable", "doubtful", "chance of disease")
"""What the columns of `Answers.why` stand for."""
_IN_COLOUR = Look("another kind of image", "it is in colour, so it is no scan.", False)


class Answers(NamedTuple):
    """What a program gives for N images; the names are those of the outputs, in their order.

    Attributes:
        grade: The class answered, int64 [N]; -1 where there is no answer.
        probabilities: Of each class after the site's temperature, float32 [N, K]; NaN where there is no answer.
        untempered: The same before it; sets of grades and the chance of disease are told from these.
        uncertainty: The doubt that the model is used with, float32 [N]; NaN where there is no answer.
        refer: Whether a doctor must see it, bool [N].
        why: Which of `WHY` hold, bool [N, 4].
        look: What the gate says, int64 [N]: a place in the export's list of sentences; 0 where nothing is odd.
    """

    grade: Tensor
    probabilities: Tensor
    untempered: Tensor
    uncertainty: Tensor
    refer: Tensor
    why: Tensor
    look: Tensor


def require_gate(predictor: Predictor) -> Gate:
    """The gate of a model that is to leave.

    Raises:
        SettingsError: It has none.
    """
    if predictor.gate is None:
        raise SettingsError(
            "the model has no gate, since it is from before there was one, and must not leave without: anyone would "
            "get a sure grade for any picture. Run again to have one."
        )
    return predictor.gate


class AnsweringProgram(nn.Module):
    """A predictor's answers as a function of tensors, for batches of any size, on the CPU.

    Attributes:
        looks: What each value of `Answers.look` means.
        example: Two images such as it takes, for whoever traces it.

    Args:
        predictor: What it answers like.

    Raises:
        SettingsError: The model has no gate, or draws a network for each pass: it cannot leave.
    """

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        operating = predictor.operating
        if operating.settings.evaluation.passes > 1:
            raise SettingsError(
                "the model answers in several passes of dropout, each with masks of its own, which no format holds: "
                "use --to folder, or a row without MC-dropout."
            )
        self.net = predictor.net
        self._gate = require_gate(predictor)
        self._operating = operating
        self._estimator = predictor.estimator
        gate_says = self._gate.kinds()
        self.looks: tuple[Look, ...] = (*gate_says, _IN_COLOUR, NOT_FINITE)
        self._answered = torch.tensor([one.answered for one in self.looks])
        shape = operating.settings.images.shape
        self.example = torch.zeros(2, *shape, dtype=torch.uint8)
        with self.at_work():
            self(self.example)  # what is kept from a first call must be kept before a tracer makes one

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """As the model works at its site: threads, kernels, no gradients."""
        with reproducible_torch(self._operating.settings.training), torch.no_grad():
            yield

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Answer images uint8 [N, 3, H, W] as the site's pipeline makes them; see `Answers`."""
        net, operating = self.net, self._operating
        scaled = images.float() / 255
        given = net.unrounded_outputs(scaled) if net.frozen else scaled
        logits, features, middle = answered_with_features(net, given, 1)
        members = (logits if logits.dim() == 3 else logits.unsqueeze(1)).double()
        most = self._estimator.settings.most_members
        raw, u = self._estimator.answer(members if most is None else members[:, -most:])
        if operating.doubt.used == "unlikely":
            u = 1 - raw.amax(1)
        shown = _tempered(raw, operating.temperature.value)
        look = self._look(images, seen_inside(features, middle))
        finite = torch.isfinite(logits).flatten(1).all(1)
        stopped = look > 0
        look = torch.where(finite | (stopped & ~self._answered[look]), look, torch.full_like(look, len(self.looks) - 1))
        answered = self._answered[look]
        grade = torch.where(answered, raw.argmax(1), torch.full_like(look, -1))
        why = self._why(grade, raw, u) & answered.unsqueeze(1)
        refer = why.any(1) | (look > 0)
        nothing = torch.full_like(u, torch.nan)
        there = answered.unsqueeze(1)
        return tuple(
            Answers(
                grade,
                torch.where(there, shown, nothing.unsqueeze(1)).float(),
                torch.where(there, raw, nothing.unsqueeze(1)).float(),
                torch.where(answered, u, nothing).float(),
                refer,
                why,
                look,
            )
        )

    def _look(self, images: Tensor, inside: Mapping[str, Tensor]) -> Tensor:
        seen: Appearance | None = None if self._gate.expected is None else measured(images)
        look = self._gate.kind(seen, inside, images.shape[0])
        if seen is None or self._gate.expected is None or not self._gate.expected.grey:
            return look
        # The site's pipeline takes colours away; a picture that has some came here by another way.
        coloured = seen.chroma >= COLOURED
        return torch.where(coloured, torch.full_like(look, len(self.looks) - 2), look)

    def _why(self, grade: Tensor, raw: Tensor, u: Tensor) -> Tensor:
        operating = self._operating
        scheme, promise = operating.scheme, operating.promise.threshold
        no = torch.zeros_like(grade, dtype=torch.bool)
        referable, chance = no, torch.zeros_like(u)
        for one in scheme.referable_classes:
            referable, chance = referable | (grade == one), chance + raw[:, one]
        ungradable = no if scheme.ungradable_class is None else grade == scheme.ungradable_class
        likely = no if promise is None else reaches(chance, promise)
        return torch.stack([referable, ungradable, reaches(u, operating.referral.threshold), likely], 1)


def reaches(values: Tensor, threshold: float) -> Tensor:
    """Which values [N] lie at a threshold, a little below it or above; what is no number does as well."""
    return ~(values < threshold - min(MARGIN, MARGIN_SHARE * threshold))


def _tempered(probabilities: Tensor, temperature: float) -> Tensor:
    """As `uncertainty.temperature.tempered`."""
    if temperature == 1:
        return probabilities
    tiny = torch.finfo(torch.float64).tiny
    return (probabilities.clamp(min=tiny).log() / temperature).softmax(1)


def traced(program: AnsweringProgram) -> Any:
    """The program as a `torch.export.ExportedProgram` whose batch is free; it names no path of this machine."""
    batch = torch.export.Dim("batch", min=1)
    with program.at_work():
        found = torch.export.export(program, (program.example,), dynamic_shapes=({0: batch},), strict=False)
    for module in found.graph_module.modules():
        for node in getattr(module, "graph", _NO_GRAPH).nodes:
            for traces in _TRACES:
                node.meta.pop(traces, None)
    return found


_NO_GRAPH = torch.fx.Graph()
_TRACES = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node", "torch_fn")
"""What a tracer notes of the code that it saw: lines, and in which files they stand."""
