"""Writes a site's model in a format that others run; the table of formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from fedretina.errors import SettingsError
from fedretina.export.bundle import write_bundle
from fedretina.export.card import hub_page, leaving_card, record
from fedretina.export.onnx_file import write_onnx
from fedretina.export.program import AnsweringProgram, require_gate, traced
from fedretina.gate.gate import FILE as GATE_FILE
from fedretina.prediction.predictor import Predictor
from fedretina.storage import filled_folder, write_json, write_tensors, write_text

ONNX, TORCH, RECORD = "model.onnx", "model.pt2", "fedretina.json"


def export_model(
    final: Path, to: str, out: Path, tell: Callable[[int, int], None] = lambda done, of: None
) -> tuple[str, ...]:
    """Write a site's model into a new or empty folder, wholly or not at all.

    Args:
        final: A site's folder `final` of a finished run, or the folder above it.
        to: A name of `FORMATS`.
        out: The folder.
        tell: Called with how many of three steps are done: the model is read, it is traced, the files are written.

    Returns:
        The files, relative to it.

    Raises:
        StateError: The model cannot be read.
        SettingsError: It cannot leave in this format, or a package is missing.
        DataError: The folder holds files already, or cannot be written.
    """
    if to not in FORMATS:
        raise SettingsError(f"there is no format {to!r}: the formats are {', '.join(FORMATS)}.")
    tell(0, 3)
    predictor = Predictor.load(final, "cpu")
    require_gate(predictor)
    card = leaving_card(predictor.card)
    tell(1, 3)
    with filled_folder(out, "the exported model") as half:
        FORMATS[to](predictor, card, half, lambda: tell(2, 3))
    tell(3, 3)
    return tuple(sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()))


def _program(predictor: Predictor, card: Mapping[str, Any], tell: Callable[[], None]) -> tuple[Any, str]:
    program = AnsweringProgram(predictor)
    found = traced(program)
    tell()
    return found, record(card, [one._asdict() for one in program.looks])


def _onnx(predictor: Predictor, card: dict[str, Any], folder: Path, tell: Callable[[], None]) -> None:
    program, told = _program(predictor, card, tell)
    write_onnx(folder / ONNX, program, told)
    kind = f"`{ONNX}` takes pixels as docs/export.md of fedretina says and gives grades, doubt and referral."
    write_text(folder / "README.md", hub_page(card, kind))


def _torch(predictor: Predictor, card: dict[str, Any], folder: Path, tell: Callable[[], None]) -> None:
    program, told = _program(predictor, card, tell)
    torch.export.save(program, folder / TORCH, extra_files={RECORD: told})
    kind = f"`{TORCH}` is a torch.export program: `torch.export.load` reads it, with no fedretina installed."
    write_text(folder / "README.md", hub_page(card, kind))


def _bundle(predictor: Predictor, card: dict[str, Any], folder: Path, tell: Callable[[], None]) -> None:
    program, told = _program(predictor, card, tell)
    (folder / "models").mkdir()
    torch.export.save(program, folder / "models" / TORCH, extra_files={RECORD: told})
    torch.save(dict(program.state_dict), folder / "models" / "model.pt")
    kind = "A MONAI bundle: `python -m monai.bundle run --config_file configs/inference.json` answers a folder."
    write_bundle(folder, card, predictor.operating.settings.images.shape, hub_page(card, kind))


def _folder(predictor: Predictor, card: dict[str, Any], folder: Path, tell: Callable[[], None]) -> None:
    tell()  # nothing is traced
    gate = predictor.gate
    assert gate is not None
    tensors = {key: tensor.detach().cpu() for key, tensor in predictor.net.state_dict().items()}
    write_tensors(folder / "model.safetensors", tensors, {"card": card})
    write_json(folder / "card.json", card)
    gate.write(folder)
    kind = f"`model.safetensors`, `card.json` and `{GATE_FILE}` belong together; fedretina reads them."
    write_text(folder / "README.md", hub_page(card, kind))


FORMATS: Mapping[str, Callable[[Predictor, dict[str, Any], Path, Callable[[], None]], None]] = MappingProxyType(
    {"onnx": _onnx, "torch": _torch, "bundle": _bundle, "folder": _folder}
)
