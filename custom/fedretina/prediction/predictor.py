"""A site's model, loaded with its card, answering photographs."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.data.decode import decode_image
from fedretina.data.dicom_file import DicomFrame
from fedretina.data.modalities import modality
from fedretina.errors import DataError, StateError, TrainingError
from fedretina.evaluation.doubt import doubted
from fedretina.evaluation.figures import LabelledPredictions
from fedretina.exchange.payload import Tensors, tensors_digest
from fedretina.gate.gate import FINE, Gate, Look, Shown
from fedretina.local.model import site_network
from fedretina.local.site_state import without_model
from fedretina.networks.build import build_on_meta
from fedretina.networks.dropout import answered_with_features
from fedretina.networks.network import Network
from fedretina.prediction.evidence import EvidenceMap, evidence_map
from fedretina.prediction.operating import Operating, understood
from fedretina.prediction.photographs import OF_SIGNALS, SUFFIXES, PhotographFolder, find_photographs
from fedretina.seeds import reproducible_torch, torch_device
from fedretina.settings.network import WeightsSettings
from fedretina.settings.training import TrainingSettings
from fedretina.storage import read_json, read_tensors
from fedretina.uncertainty.estimators import build_estimator
from fedretina.uncertainty.grade_sets import GradeSets, grades_of, set_words
from fedretina.uncertainty.promise import chance_of_disease
from fedretina.uncertainty.referral import NO_ANSWER, UNREADABLE, Referral, ReferralReason, refer
from fedretina.uncertainty.temperature import tempered

BATCH = 128  # as LocalTrainer evaluates: sums over other batches may differ in the last bits
_NAMED = 5  # folders in a sentence
_NO_LABELS = np.zeros(0, np.int64)
NOT_FINITE = Look(None, "the network gave no finite answer", False)
_CHUNK = 32  # photographs in flight, so that large ones do not fill the memory


class ImageRow(NamedTuple):
    """What the model says of one photograph.

    Attributes:
        file: Name relative to the folder.
        grade: The class answered; None where there is no answer.
        probabilities: Of each class after the site's temperature, float64 [K]; None where there is no answer.
        uncertainty: u; None where there is no answer.
        referral: Whether a doctor must see it, and why. Always so where there is no answer, and where the gate stopped
            the image.
        fault: Why there is no answer, or why it does not count; else empty.
        grades: The set of grades that holds the true one for most patients, in words; "" where there is no answer,
            where it is ungradable, or where the card knows no sets.
        steps: How far the photograph lies from the site's own, see `gate.Gate.steps`; empty where nothing measured it.
    """

    file: str
    grade: int | None
    probabilities: NDArray[np.float64] | None
    uncertainty: float | None
    referral: Referral
    fault: str
    grades: str = ""
    steps: Mapping[str, float] = MappingProxyType({})


class _Read(NamedTuple):
    """A photograph's pixels uint8 [3, S, S], or what is wrong with it; and what its colours say of its kind."""

    file: str
    pixels: NDArray[np.uint8] | None
    fault: str
    kind: Look = FINE


class Said(NamedTuple):
    """What is said of one image as the network gets it.

    Attributes:
        grade: The class answered; None where there is no answer.
        probabilities: Of each class after the temperature [K], like those below None where there is no answer.
        untempered: The same before it, which sets of grades are made of.
        uncertainty: u.
        reasons: Why a doctor must see it, but for what the gate says.
        look: What the gate says.
        steps: See `ImageRow`.
    """

    grade: int | None
    probabilities: NDArray[np.float64] | None
    untempered: NDArray[np.float64] | None
    uncertainty: float | None
    reasons: tuple[ReferralReason, ...]
    look: Look
    steps: Mapping[str, float] = MappingProxyType({})


class Answering(ABC):
    """What answers photographs, whoever computes it: reads them, asks its gate, and leaves none out.

    Attributes:
        card: The model's card.
        operating: What of it decides an answer.
        scheme: The site's grades.
        threshold: An answer is doubtful when u is this or more.
        gate: What looks at each image before its answer counts; None with a model from before there was one.

    Args:
        card: The model's card.
        gate: See `gate`.
    """

    def __init__(self, card: dict[str, Any], gate: Gate | None) -> None:
        self.card = card
        self.operating = Operating.model_validate(card)
        self.scheme = self.operating.scheme
        self.threshold = self.operating.referral.threshold
        self.gate = gate
        self._sets = None if self.operating.sets is None else GradeSets(**self.operating.sets.model_dump())

    @abstractmethod
    def said(self, images: torch.Tensor) -> list[Said]:
        """What is said of images uint8 [N, 3, H, W], at most `BATCH`."""

    @property
    def ordered(self) -> bool:
        """Whether one grade is worse than another, see `ImageSettings.ordered`."""
        return self.operating.settings.images.ordered

    @property
    def notes(self) -> list[str]:
        """Sentences for the person who reads the answers; none where the gate knows the site's own images."""
        if self.gate is None:
            return [
                "Nothing looked at these photographs before they were answered, since the model is from before there "
                "was a gate: a photograph of another kind, camera or quality may have a sure grade. Run again to have "
                "one."
            ]
        if not self.gate.measures:
            return [
                "The site had too few images to tell how its own look: photographs were stopped only for what is odd "
                "anywhere, and not for being unlike the site's."
            ]
        return []

    @property
    def of_signals(self) -> bool:
        """Whether it reads WAV files and no pictures."""
        return self.operating.settings.images.signal

    def find(self, folder: Path) -> PhotographFolder:
        """The files of a folder, and of the folders in it, that the model can be asked about.

        Raises:
            DataError: The folder, or one in it, cannot be listed.
            SettingsError: There is a DICOM file and pydicom is not installed.
        """
        return find_photographs(
            folder, OF_SIGNALS if self.of_signals else SUFFIXES, self.operating.settings.images.dicom
        )

    def predict(
        self, root: Path, files: Sequence[str], frames: Mapping[str, DicomFrame] = MappingProxyType({})
    ) -> Iterator[ImageRow]:
        """Answer files in their order, one row each; none is left out.

        Args:
            root: The folder.
            files: Names relative to it.
            frames: Those of them that are pictures in DICOM files, by their names.

        Yields:
            The rows, a batch at a time.
        """
        return self._predicted([(file, frames.get(file, root / file)) for file in files])

    def pictures(self, pictures: Sequence[NDArray[np.uint8]]) -> list[ImageRow]:
        """Answer pictures that were decoded elsewhere, named by their numbers.

        Args:
            pictures: uint8 [H, W, 3] each, RGB, of any size.

        Raises:
            DataError: One is no such picture, or the model reads recordings.
        """
        if self.of_signals:
            raise DataError("the model reads recordings: give it files.")
        for number, one in enumerate(pictures):
            if not isinstance(one, np.ndarray) or one.dtype != np.uint8 or one.ndim != 3 or one.shape[2] != 3:
                raise DataError(f"picture {number} is no uint8 array [H, W, 3] in RGB: convert it, or give files.")
        return list(self._predicted([(str(number), one) for number, one in enumerate(pictures)]))

    def pipeline(self) -> Callable[[Path | DicomFrame | NDArray[np.uint8]], NDArray[np.uint8]]:
        """What makes of a photograph, or of its pixels uint8 [H, W, 3], what the network gets: uint8 [3, S, S].

        It raises DataError where the photograph cannot be read.
        """
        from fedretina.data.modalities import image_pipeline

        given = cast(
            "Callable[[Path | NDArray[np.uint8]], NDArray[np.uint8]]", image_pipeline(self.operating.settings.images)
        )
        return lambda source: given(source.pixels() if isinstance(source, DicomFrame) else source)

    def _predicted(self, sources: Sequence[tuple[str, Path | DicomFrame | NDArray[np.uint8]]]) -> Iterator[ImageRow]:
        transform = self.pipeline()
        gate = self.gate if self.gate is not None and self.gate.expected is not None else None
        told_by_colour = gate is not None and gate.expected is not None and gate.expected.grey

        def read(named: tuple[str, Path | DicomFrame | NDArray[np.uint8]]) -> _Read:
            file, source = named
            path = source.path if isinstance(source, DicomFrame) else source
            try:
                kind = FINE
                if isinstance(source, DicomFrame):
                    source = source.pixels()
                if told_by_colour and gate is not None:
                    # Scans are greyed on their way to the network, so a picture in colour is told before.
                    kind = gate.refuses(decode_image(source) if isinstance(source, Path) else source)
                return _Read(file, transform(source), "", kind)
            except DataError as error:
                return _Read(file, None, f"the file {str(error).removeprefix(str(path)).strip()}")

        waiting: list[_Read] = []
        # OpenCV releases the interpreter lock, so threads decode side by side; map keeps the order.
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            for begin in range(0, len(sources), _CHUNK):
                for one in pool.map(read, sources[begin : begin + _CHUNK]):
                    waiting.append(one)
                    if sum(each.pixels is not None for each in waiting) == BATCH:
                        yield from self._rows(waiting)
                        waiting = []
        yield from self._rows(waiting)

    def answer(self, files: Sequence[str], images: torch.Tensor) -> list[ImageRow]:
        """Answer images that are at hand as the network gets them, gate and all; whoever has no files calls this.

        Args:
            files: A name of each.
            images: uint8 [N, 3, S, S], at most `BATCH`.
        """
        return list(self._rows([_Read(file, one.numpy(), "") for file, one in zip(files, images, strict=True)]))

    def _rows(self, read: Sequence[_Read]) -> Iterator[ImageRow]:
        pixels = [one.pixels for one in read if one.pixels is not None]
        said = iter(self.said(torch.from_numpy(np.stack(pixels))) if pixels else [])
        for one in read:
            if one.pixels is None:
                yield ImageRow(one.file, None, None, None, UNREADABLE, one.fault)
                continue
            of = next(said)
            if one.kind.reason is not None:
                of = Said(None, None, None, None, (), one.kind, of.steps)
            reasons = of.reasons if of.look.reason is None else (*of.reasons, of.look.reason)
            if of.look.unusual:
                reasons = (*reasons, "unusual for this site")
            held = "" if of.grade is None else self._set_words(of)
            found = Referral(bool(reasons), reasons)
            yield ImageRow(one.file, of.grade, of.probabilities, of.uncertainty, found, of.look.words, held, of.steps)

    def _set_words(self, of: Said) -> str:
        if self._sets is None or self._sets.limit is None or of.grade == self.scheme.ungradable_class:
            return ""
        assert of.untempered is not None
        found = grades_of(self._sets, of.untempered[None], self.scheme)[0]
        return set_words(found, self.scheme, self._sets.ordered)


class Predictor(Answering):
    """Answers photographs as the site's model did when it was tested: same pixels, same bits on an equal device.

    What frozen stages give is not rounded here, though it was in the run, which keeps it (`Network.unrounded_outputs`):
    with such stages probabilities differ from those of the test by up to some 0.002. Made by `load`.

    Attributes:
        card: The model's card.
        scheme: The site's grades.
        threshold: An answer is doubtful when u is this or more.
        gate: What looks at each image before its answer counts; None with a model from before there was one.
        net: The network, in evaluation mode.
        estimator: What makes an answer of its logits.
    """

    def __init__(
        self, card: dict[str, Any], net: Network, training: TrainingSettings, gate: Gate | None = None
    ) -> None:
        super().__init__(card, gate)
        self.estimator = build_estimator(self.operating.settings.evaluation)
        self._training = training
        self._device = torch_device(training)
        self._layout = torch.channels_last if training.channels_last else torch.contiguous_format
        self.net = net.eval().to(device=self._device, memory_format=self._layout)  # type: ignore[call-overload]

    @classmethod
    def load(cls, folder: Path, device: Literal["auto", "cpu", "cuda"] = "auto") -> Predictor:
        """Read `model.safetensors`, `card.json` and the gate, and check that they belong together and to this version.

        A model from before there was a gate answers as it did, and `notes` says so. Where the card names a gate that is
        not there nothing is answered: it must not be got round by removing a file.

        Args:
            folder: A site's folder `final`, or the folder above it.
            device: Where to compute; "auto" is CUDA where there is one.

        Raises:
            StateError: A file is missing or damaged, was changed after the run, or is of another version.
            SettingsError: CUDA is asked for and not there.
        """
        if not (folder / "card.json").exists() and (folder / "final" / "card.json").exists():
            folder = folder / "final"
        if not any((folder / name).exists() for name in ("card.json", "model.safetensors")):
            raise StateError(_no_model(folder))
        card = read_json(folder / "card.json")
        operating = understood(card, folder)
        tensors, header = read_tensors(folder / "model.safetensors")
        if header.get("card") != card or tensors_digest(tensors) != operating.model_digest:
            raise StateError(
                f"the model and the card in {folder} do not belong together, or one of them was changed after the run: "
                "restore both from the same run."
            )
        training = operating.settings.training.model_copy(update={"device": device})
        gate = None
        if operating.look is not None:
            expected = None if operating.settings.images.signal else modality.of(operating.settings.images).look
            gate = Gate.read(folder, operating.look.gate, expected)
            if gate.record.get("model") != operating.model_digest:
                raise StateError(f"the gate in {folder} is another model's: restore both from the same run.")
        return cls(card, _network(operating, tensors, folder), training, gate)

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """Logits float32 [N, K], or [N, M, K] of members, of at most `BATCH` images uint8 [N, 3, S, S], on the CPU."""
        return self.answered(images)[0]

    def answered(self, images: torch.Tensor) -> tuple[torch.Tensor, Shown]:
        """The same, and the images with what the gate looks at."""
        with reproducible_torch(self._training), torch.inference_mode():
            scaled = images.float().div_(255).to(device=self._device, memory_format=self._layout)
            given = self.net.unrounded_outputs(scaled) if self.net.frozen else scaled
            said = answered_with_features(self.net, given, self.operating.settings.evaluation.passes)
            middle = None if said.middle is None else said.middle.cpu()
            return said.logits.float().cpu(), Shown(images, said.features.cpu(), middle=middle)

    def evidence(self, images: torch.Tensor) -> list[EvidenceMap | None]:
        """What the answers to images rest on; None where the encoder has no grid.

        Args:
            images: uint8 [N, 3, S, S], at most `BATCH`; one by one they cost several times as much.
        """
        logits = self.logits(images)
        with reproducible_torch(self._training):
            scaled = images.float().div_(255).to(device=self._device, memory_format=self._layout)
            return [
                evidence_map(self.net, self.estimator, self.scheme, one[None], said[None])
                for one, said in zip(scaled, logits, strict=True)
            ]

    def looks(self, shown: Shown) -> list[Look]:
        """What the gate says of images; nothing odd where there is no gate."""
        if self.gate is None:
            return [FINE] * len(shown.images)
        with reproducible_torch(self._training):
            return self.gate.look(shown)

    def steps(self, shown: Shown) -> list[Mapping[str, float]]:
        """How far each image lies from the site's own; see `gate.Gate.steps`."""
        if self.gate is None:
            return [{}] * len(shown.images)
        with reproducible_torch(self._training):
            found = self.gate.steps(shown)
        return [{name: float(column[at]) for name, column in found.items()} for at in range(len(shown.images))]

    def said(self, images: torch.Tensor) -> list[Said]:
        """See `Answering.said`."""
        operating = self.operating
        logits, shown = self.answered(images)
        given = self.estimator.predict(logits)
        answer = doubted(
            LabelledPredictions(given.probabilities, given.uncertainty, _NO_LABELS, ()), operating.doubt.used
        )
        finite = torch.isfinite(logits).flatten(1).all(1).tolist()
        chances = chance_of_disease(answer.probabilities, self.scheme)
        found = []
        steps = self.steps(shown)
        for at, look in enumerate(self.looks(shown)):
            raw = answer.probabilities[at]
            if not look.answered:
                found.append(Said(None, None, None, None, (), look, steps[at]))
            elif not finite[at]:
                found.append(Said(None, None, None, None, NO_ANSWER.reasons, NOT_FINITE, steps[at]))
            else:
                grade, u = int(np.argmax(raw)), float(answer.uncertainty[at])
                shown = tempered(raw[None], operating.temperature.value)[0]
                chance = float(chances[at])
                why = refer(grade, u, self.threshold, self.scheme, chance, operating.promise.threshold)
                found.append(Said(grade, shown, raw, u, why.reasons, look, steps[at]))
        return found


def _no_model(folder: Path) -> str:
    """What to name instead of a folder that holds no model."""
    below = sorted(path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/final/card.json"))
    if not below:
        why = without_model(folder) or without_model(folder.parent)
        return f"{folder} holds no site's model: name RUN/SITE/final of a finished run, which holds card.json.{why}"
    some = ", ".join(map(str, below[:_NAMED]))
    more = f" and {len(below) - _NAMED} more" if len(below) > _NAMED else ""
    return f"{folder} holds no site's model itself: name one below it, {some}{more}."


def _network(operating: Operating, tensors: Tensors, folder: Path) -> Network:
    settings, grades = operating.settings.network, operating.scheme.num_classes
    # The weights come from the model's file, so those that training started from are not needed; only the
    # normalisation still depends on them.
    normalise = operating.normalisation or build_on_meta(settings, grades).normalisation
    # Contrast layers are no part of what answers, so they are not stored.
    bare = settings.model_copy(update={"weights": WeightsSettings(), "normalise": normalise, "contrast": None})
    try:
        net = site_network(operating.settings, operating.scheme, seed=0, settings=bare)
    except TrainingError as error:
        raise StateError(f"the card in {folder} cannot be used ({error}): restore it.") from error
    try:
        net.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise StateError(
            f"the tensors in {folder} do not fit the network that its card describes: restore both from the same run."
        ) from error
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise StateError(f"the model in {folder} holds numbers that are not finite: it cannot answer; train again.")
    return net
