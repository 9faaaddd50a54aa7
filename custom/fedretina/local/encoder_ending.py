"""The end of a run without labels: the pre-trained encoder as a file that another run can start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fedretina.data.site_data import SiteData
from fedretina.exchange.payload import Tensors
from fedretina.networks.encoder_file import export_encoder
from fedretina.settings.experiment import Experiment
from fedretina.settings.network import Normalisation
from fedretina.storage import write_json
from fedretina.version import versions

HOW = (
    "Start another run from this encoder: network.weights {source: file, sha256: as below}, and each end's own path in "
    "its settings (weights_file)."
)


def write_encoder(
    folder: Path, run: str, experiment: Experiment, tensors: Tensors, normalisation: Normalisation
) -> str:
    """Write `encoder.safetensors`, and beside it `encoder.json` with what another run needs to know.

    Args:
        folder: Where they go.
        run: Name of the run.
        experiment: Its settings.
        tensors: A state that holds the whole encoder, by the network's keys; other keys are left out.
        normalisation: How the encoder's images were normalised.

    Returns:
        The file's SHA-256.

    Raises:
        StateError: The disk is full or not writable.
    """
    state = {
        # A counter is each site's own, and no answer depends on it: without it equal encoders are equal files.
        key: torch.zeros_like(tensor) if key.endswith(".num_batches_tracked") else tensor
        for key, tensor in tensors.items()
        if key.startswith("encoder.")
    }
    name, rounds = experiment.network.encoder, sum(phase.rounds for phase in experiment.phases)
    told = f"{experiment.row}, {rounds} rounds without labels, run {run}"
    digest = export_encoder(folder / "encoder.safetensors", name, state, normalisation, told)
    record: dict[str, Any] = {
        "encoder": name,
        "sha256": digest,
        "normalisation": normalisation,
        "provenance": told,
        "use": HOW,
        "settings": experiment.agreed(),
        "versions": versions(),
    }
    write_json(folder / "encoder.json", record)
    return digest


def finalise_encoder(
    run: str, folder: Path, experiment: Experiment, data: SiteData, tensors: Tensors, normalisation: Normalisation
) -> dict[str, float]:
    """Write a site's encoder to `final/` and return the scalars that may leave.

    Args:
        run: Name of the run.
        folder: The site's own folder of the run.
        experiment: The run's settings.
        data: The site's data.
        tensors: The last aggregate, with what the site keeps of the encoder laid over it.
        normalisation: How the encoder's images were normalised.
    """
    write_encoder(folder / "final", run, experiment, tensors, normalisation)
    return {
        "images_pretrain": float(data.counts["pretrain"]),
        "bad_files": float(data.bad_files),
        "synthetic": float(data.synthetic),
    }
