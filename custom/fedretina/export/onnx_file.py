"""A site's model as one ONNX file."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedretina.errors import SettingsError
from fedretina.export.program import INPUT, Answers

RECORD = "fedretina"
"""Under this name the file's metadata hold what `fedretina.load` reads."""
NEEDED = (
    "ONNX needs packages that are not installed: run "
    '`pip install "onnx>=1.19,<2" "onnxscript>=0.5,<1" "onnxruntime>=1.22,<2" "fire>=0.7,<1" "jsonschema>=4.20,<5"`.'
)
_OPSET = 18


def write_onnx(path: Path, program: Any, record: str) -> None:
    """Write a program as an ONNX file with a free batch, weights inside.

    Args:
        path: The file.
        program: What `program.traced` gave.
        record: What `card.record` gave, stored in the file's metadata.

    Raises:
        SettingsError: The packages that write ONNX are not installed.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise SettingsError(NEEDED) from error
    table = torch.export.default_decompositions()
    table[torch.ops.aten.softplus.default] = _softplus
    told = logging.getLogger("torch.onnx").level
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells its own steps, which are nobody's concern
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            written = torch.onnx.export(
                program.run_decompositions(table),
                dynamo=True,
                external_data=False,
                opset_version=_OPSET,
                input_names=[INPUT],
                output_names=list(Answers._fields),
                verbose=False,
            )
    finally:
        logging.getLogger("torch.onnx").setLevel(told)
    assert written is not None
    written.model.producer_name = "fedretina"
    written.model.metadata_props.clear()
    written.model.metadata_props[RECORD] = record
    for node in written.model.graph:  # the tracer notes lines of code with the paths of this machine
        node.metadata_props.clear()
        node.doc_string = None
    written.save(str(path))


def _softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """As torch's, of what onnxruntime can do in float64."""
    return x.relu() + (-(x * beta).abs()).exp().log1p() / beta
