"""`fedretina.load`: a site's model, of a run or exported, that answers pictures with its gate before every answer."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.data.modalities import modality
from fedretina.errors import DataError, SettingsError, StateError
from fedretina.export.onnx_file import RECORD as ONNX_RECORD
from fedretina.export.program import INPUT, WHY, Answers
from fedretina.gate.gate import Gate, Look
from fedretina.prediction.operating import understood
from fedretina.prediction.predictor import Answering, ImageRow, Predictor, Said
from fedretina.seeds import reproducible_torch
from fedretina.settings.scheme import GradingScheme
from fedretina.uncertainty.referral import NO_ANSWER

_EXPORTED = ("model.onnx", "model.pt2", "models/model.pt2")
_RECORD_FORMAT = 1
_MISSING = 'this file needs onnxruntime, which is not installed: run `pip install "onnxruntime>=1.22,<2"`.'


class Model:
    """A site's model that answers pictures, wherever it was loaded from; made by `load`.

    Attributes:
        card: Its card.
        scheme: The site's grades.
        notes: Sentences for the person who reads the answers.
    """

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self.card: dict[str, Any] = answering.card
        self.scheme: GradingScheme = answering.scheme
        self.notes: list[str] = answering.notes

    def predict(
        self, images: str | PathLike[str] | Sequence[str | PathLike[str]] | Sequence[NDArray[np.uint8]]
    ) -> list[ImageRow]:
        """Answer pictures, one row each in their order; the gate looks at each first.

        Args:
            images: A folder, in which those in folders are found too; a file; files; or pictures uint8 [H, W, 3] in
                RGB as a decoder gives them, of any size, whose rows have their numbers for names.

        Returns:
            The rows. One that the gate refuses has no grade and says why, and so has one that cannot be read.

        Raises:
            DataError: A folder cannot be listed or holds no such file, or a picture is no such array.
        """
        if isinstance(images, str | PathLike):
            place = Path(images)
            if not place.is_dir():
                return list(self._answering.predict(place.parent, [place.name]))
            found = self._answering.find(place)
            if not found.files:
                raise DataError(f"{place} holds no {'recording' if self._answering.of_signals else 'photograph'}.")
            return list(self._answering.predict(place, found.files, found.frames))
        arrays = [one for one in images if isinstance(one, np.ndarray)]
        if len(arrays) == len(images):
            return self._answering.pictures(arrays)
        return list(self._answering.predict(Path(), [str(one) for one in images]))


def load(path: str | PathLike[str]) -> Model:
    """Load a site's model from a run's folder, or one that `fedretina export` wrote; it computes on the CPU.

    Args:
        path: RUN/SITE/final or RUN/SITE; or an export's folder; or a file `model.onnx` or `model.pt2` of one.

    Raises:
        StateError: There is no model, or it is damaged, was changed, or is of another version.
        SettingsError: The packages that run ONNX are not installed.
    """
    place = Path(path)
    found = next((place / name for name in _EXPORTED if (place / name).is_file()), place)
    if found.suffix == ".onnx":
        return Model(OnnxModel(found))
    if found.suffix == ".pt2":
        return Model(TorchModel(found))
    return Model(Predictor.load(place, "cpu"))


class ExportedModel(Answering):
    """A model that was exported as one program, which holds the gate too.

    Args:
        told: The record that was stored with the program, JSON.
        path: The program's file.

    Raises:
        StateError: The record is missing, damaged, or of another version.
    """

    def __init__(self, told: str | None, path: Path) -> None:
        try:
            record = json.loads(told or "")
            format_, card, looks = record["format"], record["card"], [Look(**one) for one in record["looks"]]
            gate_record = card["look"]["gate"]
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{path} holds no record of fedretina's, so nobody knows its gate: export the model again."
            ) from error
        if format_ != _RECORD_FORMAT:
            raise StateError(f"{path} has format {format_}, this version reads {_RECORD_FORMAT}: export it again.")
        images = understood(card, path).settings.images
        expected = None if images.signal else modality.of(images).look
        super().__init__(card, Gate(gate_record, {}, expected))  # its tensors are in the program
        self._looks = looks

    @abstractmethod
    def run(self, images: torch.Tensor) -> Answers:
        """What the program gives, as arrays."""

    def said(self, images: torch.Tensor) -> list[Said]:
        """See `Answering.said`."""
        found = []
        answers = self.run(images)
        for at in range(len(images)):
            look = self._looks[int(answers.look[at])]
            grade = int(answers.grade[at])
            if grade < 0:
                reasons = NO_ANSWER.reasons if look.reason is None else ()
                found.append(Said(None, None, None, None, reasons, look))
                continue
            shown, raw = (np.asarray(one[at], np.float64) for one in (answers.probabilities, answers.untempered))
            why = tuple(reason for reason, holds in zip(WHY, answers.why[at].tolist(), strict=True) if holds)
            found.append(Said(grade, shown, raw, float(answers.uncertainty[at]), why, look))
        return found


class OnnxModel(ExportedModel):
    """A model in an ONNX file, run by onnxruntime on the CPU."""

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise SettingsError(_MISSING) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its errors have no common base
            raise StateError(f"{path} cannot be read as ONNX ({type(error).__name__}): export it again.") from error
        super().__init__(self._session.get_modelmeta().custom_metadata_map.get(ONNX_RECORD), path)

    def run(self, images: torch.Tensor) -> Answers:
        """See `ExportedModel.run`."""
        return Answers(*self._session.run(list(Answers._fields), {INPUT: images.numpy()}))


class TorchModel(ExportedModel):
    """A model in a `torch.export` file."""

    def __init__(self, path: Path) -> None:
        extra = {"fedretina.json": ""}
        try:
            self._program = torch.export.load(path, extra_files=extra).module()
        except Exception as error:  # its errors have no common base
            raise StateError(
                f"{path} cannot be read as a program of torch ({type(error).__name__}): export it again."
            ) from error
        super().__init__(extra["fedretina.json"], path)

    def run(self, images: torch.Tensor) -> Answers:
        """See `ExportedModel.run`."""
        with reproducible_torch(self.operating.settings.training), torch.no_grad():
            return Answers(*self._program(images))
