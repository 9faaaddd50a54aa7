"""A MONAI bundle: metadata, a configuration that `monai.bundle run` runs, and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedretina.export.program import Answers
from fedretina.settings.images import modality_settings
from fedretina.storage import write_json, write_text

SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"


def write_bundle(folder: Path, card: Mapping[str, Any], shape: Sequence[int], page: str) -> None:
    """Write all of a bundle but its models.

    Args:
        folder: The bundle's root.
        card: What leaves of the model's card.
        shape: Of an image as the program takes it.
        page: Its README.
    """
    for below in ("configs", "docs"):
        (folder / below).mkdir()
    write_json(folder / "configs" / "metadata.json", _metadata(card, shape))
    write_json(folder / "configs" / "inference.json", _INFERENCE)
    write_text(folder / "docs" / "README.md", page)


_INFERENCE: dict[str, Any] = {
    "imports": ["$from fedretina.export.bundle import answer_folder"],
    "bundle_root": ".",
    "network_def": {
        "_target_": "fedretina.export.bundle.AnsweringNetwork",
        "path": "$@bundle_root + '/models/model.pt2'",
    },
    "dataset_dir": "$@bundle_root + '/images'",
    "output_dir": "$@bundle_root + '/eval'",
    "run": ["$answer_folder(@bundle_root, @dataset_dir, @output_dir)"],
}


class AnsweringNetwork(nn.Module):
    """The bundle's program in the form in which MONAI checks a network: one tensor in, one out.

    Args:
        path: The bundle's `model.pt2`.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        # Not a module of this one: what torch.export gives refuses `eval`, which MONAI calls on all.
        self._programs = [torch.export.load(path).module()]

    def forward(self, images: Tensor) -> Tensor:
        """Probabilities float32 [N, K] of images float32 [N, 3, H, W] in [0, 1]; NaN where the gate gives no answer."""
        answers = self._programs[0](images.mul(255).round().clamp(0, 255).byte().cpu())
        found: Tensor = answers[Answers._fields.index("probabilities")]
        return found.to(images.device)


def answer_folder(root: str, images: str, out: str) -> None:
    """What the bundle's configuration calls: answer a folder of photographs, and write `answers.csv`.

    Args:
        root: The bundle.
        images: Photographs, in folders too.
        out: A folder for the table; one line a photograph, as `ImageRow` has it. Its cells are as harmless as those of
            the work list's tables.

    Raises:
        StateError: The bundle's model cannot be read.
        DataError: There are no photographs, or the table cannot be written.
    """
    import csv
    import io

    from fedretina.export.model import load
    from fedretina.prediction.worklist import cell

    model = load(Path(root))
    told = io.StringIO()
    lines = csv.writer(told)
    header = ["file", "grade", *model.scheme.grades, "uncertainty", "refer", "reasons", "fault"]
    lines.writerow([cell(name) for name in header])
    for row in model.predict(Path(images)):
        name = "" if row.grade is None else model.scheme.grades[row.grade]
        chances = (
            [""] * len(model.scheme.grades) if row.probabilities is None else [f"{p:.6f}" for p in row.probabilities]
        )
        u = "" if row.uncertainty is None else f"{row.uncertainty:.6f}"
        refer = str(int(row.referral.refer))
        line = [row.file, name, *chances, u, refer, "; ".join(row.referral.reasons), row.fault]
        lines.writerow([cell(value) for value in line])
    Path(out).mkdir(parents=True, exist_ok=True, mode=0o700)
    write_text(Path(out) / "answers.csv", told.getvalue(), 0o600)


def _metadata(card: Mapping[str, Any], shape: Sequence[int]) -> dict[str, Any]:
    grades = {str(at): name for at, name in enumerate(card["grades"])}
    modality = card["settings"]["images"]["modality"]
    return {
        "schema": SCHEMA,
        "version": "0.1.0",
        "changelog": {"0.1.0": f"exported by fedretina {card['fedretina']}"},
        "monai_version": version("monai"),
        "pytorch_version": version("torch").split("+")[0],
        "numpy_version": version("numpy"),
        "required_packages_version": {"fedretina": card["fedretina"]},
        "name": f"fedretina {card['row']} {modality}",
        "task": f"grading of {modality_settings(modality).words}, with a doubt and a referral",
        "description": f"{card['intended_use'][0]} {card['notice']}",
        "authors": "the hospital that exported it",
        "copyright": "the hospital that exported it",
        "data_type": "image files",
        "intended_use": f"{' '.join(card['intended_use'])} {card['notice']}",
        "network_data_format": {
            "inputs": {
                "image": {
                    "type": "image",
                    "format": "magnitude",
                    "modality": modality,
                    "num_channels": shape[0],
                    "spatial_shape": list(shape[1:]),
                    "dtype": "float32",
                    "value_range": [0, 1],
                    "is_patch_data": False,
                    "channel_def": {"0": "R", "1": "G", "2": "B"},
                }
            },
            "outputs": {
                "pred": {
                    "type": "probabilities",
                    "format": "classes",
                    "num_channels": len(grades),
                    "spatial_shape": [1],
                    "dtype": "float32",
                    "value_range": [0, 1],
                    "is_patch_data": False,
                    "channel_def": grades,
                }
            },
        },
    }
