"""Photographs per second of `predict`, beside the same network alone in onnxruntime and in PyTorch."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import fedretina
from benchmarks.common import Result, result
from fedretina.data.modalities import image_pipeline
from fedretina.export.program import INPUT
from fedretina.export.write import ONNX, export_model
from fedretina.prediction.predictor import Predictor

_REPEATS = 5
_BATCH = 32


def measure(scratch: Path, quick: bool = False) -> Result:
    """Train a model of FedUAA for one round on phantoms, export it, and time it in each way.

    Args:
        scratch: For the run, the export and the photographs.
        quick: Few and small images, for a look whether it works.
    """
    size, images = (32, 24) if quick else (224, 160)
    experiment = fedretina.Experiment.resolve(
        {
            "row": "feduaa",
            "phases": [{"name": "train", "rounds": 1}],
            "images": {"image_size": size},
            "training": {"threads": 1},
            "phantom_images": images,
            "verdict": "off",
            "report": {"draws": 10, "page": False},
        }
    )
    site_file = fedretina.draw_site("north", scratch / "north", images=images, size=2 * size)
    site = fedretina.load_site("north", experiment, site_file, scratch / "cache")
    fedretina.run_loop(experiment, {"north": site}, scratch / "runs", "speed")
    final = scratch / "runs" / "speed" / "north" / "final"
    export_model(final, "onnx", scratch / "onnx")
    files = sorted((scratch / "north" / "images").rglob("*.png"))
    figures = compared(final, scratch / "onnx", files, 1 if quick else _REPEATS)
    return result(
        "Answering photographs",
        "Photographs per second on one core: `predict` from files, with decoding, crop, gate, referral and sets, by "
        "the run's model and by the exported one; and, of pixels that are ready, the exported program in onnxruntime "
        "(gate within), and the bare network in PyTorch (no gate, no referral).",
        {f"EfficientNet-Lite0, {size} px, batches of {_BATCH}": figures},
        [],
        {"torch threads": 1, "onnxruntime threads": 1, "photographs": len(files), "side of the files, px": 2 * size},
        ["Files are decoded by as many threads as there are cores, up to 8; all else runs on one."],
    )


def compared(final: Path, exported: Path, files: list[Path], repeats: int) -> dict[str, list[float]]:
    """Photographs per second by way, one value a repeat, the ways in turn.

    Args:
        final: A site's model.
        exported: The same as ONNX.
        files: Photographs.
        repeats: How often.
    """
    import onnxruntime

    predictor = Predictor.load(final, "cpu")
    model = fedretina.load(exported)
    transform = image_pipeline(predictor.operating.settings.images)
    pixels = np.stack([transform(file) for file in files])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(exported / ONNX), options, providers=["CPUExecutionProvider"])
    batches = [pixels[at : at + _BATCH] for at in range(0, len(pixels), _BATCH)]
    net = predictor.net

    def bare() -> None:
        with torch.inference_mode():
            for batch in batches:
                net(torch.from_numpy(batch).float() / 255)

    names = [str(file) for file in files]
    ways: dict[str, Callable[[], object]] = {
        "predict, a run's model, per s": lambda: list(predictor.predict(Path(), names)),
        "predict, exported to ONNX, per s": lambda: model.predict(names),
        "onnxruntime on ready pixels, per s": lambda: [session.run(None, {INPUT: batch}) for batch in batches],
        "PyTorch on ready pixels, per s": bare,
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for way in ways.values():
            way()
        for _ in range(repeats):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                found[name].append(len(files) / (time.perf_counter() - began))
    finally:
        torch.set_num_threads(threads)
    return found
