"""An encoder in a file of its own: what one run gives and another starts from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, get_args

import torch
from torch import Tensor

from fedretina.errors import SettingsError
from fedretina.exchange.payload import Tensors
from fedretina.networks.encoder import Encoder, build_encoder
from fedretina.settings.encoder import Normalisation, encoder_traits
from fedretina.settings.experiment import Experiment
from fedretina.storage import HEADER, write_bytes, write_json
from fedretina.version import versions

PREFIX = "encoder."
"""Of an encoder's keys in a network; a file may have them with it or without."""
_MARK = "encoder"
_LENGTH = 8  # bytes that hold the length of a safetensors header
_LONGEST = 1000
_BETWEEN = ","  # a header holds strings alone, and no name of a set has a comma
HOW = (
    "Start another run from this encoder: network.weights {source: file, sha256: as below}, and each end's own path in "
    "its settings (weights_file)."
)


class Learned(TypedDict, total=False):
    """What is told of weights that others trained: all three, or nothing.

    Attributes:
        pretrained_on: What they were trained on.
        sets: Names of public sets (readers) among it.
        licence: What their owner says of them.
    """

    pretrained_on: str
    sets: list[str]
    licence: str


_NOTHING = Learned()


class EncoderHeader(NamedTuple):
    """What an encoder's file says of itself.

    Attributes:
        encoder: The architecture's name.
        normalisation: Of the images that the weights were trained with.
        provenance: Where they come from, in words.
        start: What is told of the weights that the run began with; empty where it began with none, or where an earlier
            version wrote the file.
    """

    encoder: str
    normalisation: Normalisation
    provenance: str
    start: Learned = _NOTHING


def export_encoder(
    path: Path,
    encoder_name: str,
    state: Mapping[str, Tensor],
    normalisation: Normalisation,
    provenance: str,
    start: Learned = _NOTHING,
) -> str:
    """Write an encoder's weights to a `.safetensors` file of their own, atomically; equal weights give equal bytes.

    Args:
        path: The file.
        encoder_name: Architecture of the weights.
        state: The encoder's `state_dict`, or one of a whole network, of which only the keys `encoder.*` are written: no
            head leaves.
        normalisation: Of the images that the weights were trained with.
        provenance: Where they come from, in words, such as the run and its phase. It travels with the file, so it must
            not name a patient, a hospital's file or a path.
        start: What is told of the weights that the run began with. It travels with the file, for it holds for what is
            made of them.

    Returns:
        The file's sha256, 64 hex digits, to be given as `network.weights.sha256`.

    Raises:
        SettingsError: The state does not fit the encoder, has values that are not finite or is not all there; the
            provenance is empty or longer than 1000 characters; or the file's name does not end in .safetensors.
        StateError: The disk is full or not writable.
    """
    from safetensors.torch import save

    if path.suffix != ".safetensors":
        raise SettingsError("An encoder is exported as .safetensors only; give the file a name that ends so.")
    if not 0 < len(provenance.strip()) <= _LONGEST:
        raise SettingsError(
            f"The provenance of an exported encoder has {len(provenance.strip())} characters, and 1 to {_LONGEST} are "
            "needed; say in a sentence which run it comes from."
        )
    mine = without_prefix({k: v for k, v in state.items() if k.startswith(PREFIX)} or state)
    whole = _whole(encoder_name, mine)
    header = {"encoder": encoder_name, "normalisation": normalisation, "provenance": provenance.strip()}
    content = _sorted_header(save(whole, {HEADER: _MARK, **header, **_carried(start)}))
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()


def read_header(data: bytes) -> EncoderHeader | None:
    """Read what a safetensors file says of itself; None if it is not from this package.

    Args:
        data: The bytes of a sound safetensors file.

    Raises:
        SettingsError: The file is from this package but no exported encoder, or its words are not understood.
    """
    try:
        metadata = json.loads(data[_LENGTH : _LENGTH + int.from_bytes(data[:_LENGTH], "little")]).get(
            "__metadata__", {}
        )
        mark = metadata.get(HEADER)
    except (ValueError, AttributeError):
        return None
    if mark is None:
        return None
    if mark != _MARK:
        raise SettingsError(
            "The file of pre-trained weights is a whole model or another file of fedretina; export its encoder "
            "first, and give that file."
        )
    encoder, normalisation, provenance = (metadata.get(name) for name in ("encoder", "normalisation", "provenance"))
    known = _is_encoder(encoder) and normalisation in get_args(Normalisation)
    if not known or not isinstance(provenance, str):
        raise SettingsError(
            "The exported encoder says of itself what this version does not understand; export it again, or load it "
            "with the version that wrote it."
        )
    if "pretrained_on" not in metadata:
        return EncoderHeader(encoder, normalisation, provenance)
    pretrained_on, sets, licence = (str(metadata.get(name, "")) for name in ("pretrained_on", "sets", "licence"))
    start = Learned(pretrained_on=pretrained_on, sets=list(filter(None, sets.split(_BETWEEN))), licence=licence)
    return EncoderHeader(encoder, normalisation, provenance, start)


def _carried(start: Learned) -> dict[str, str]:
    """What a header says of the weights that the run began with."""
    if "pretrained_on" not in start:
        return {}
    return {
        "pretrained_on": start["pretrained_on"],
        "sets": _BETWEEN.join(start["sets"]),
        "licence": start["licence"],
    }


def _is_encoder(name: object) -> bool:
    try:
        encoder_traits(str(name))
    except SettingsError:
        return False
    return True


def load_exported(encoder_name: str, encoder: Encoder, header: EncoderHeader, state: Mapping[str, Tensor]) -> None:
    """Load an exported state into an encoder, in place.

    Args:
        encoder_name: Architecture of `encoder`.
        encoder: The encoder.
        header: What the file says of itself.
        state: Its tensors, by the encoder's own keys, all of them with the prefix "encoder." or none.

    Raises:
        SettingsError: The file is of another architecture, or does not fit.
    """
    if header.encoder != encoder_name:
        raise SettingsError(
            f"The file of pre-trained weights holds the encoder {header.encoder}, but the network's is {encoder_name}; "
            "set network.encoder to it or give another file."
        )
    encoder.load_exactly(without_prefix(state))


def without_prefix(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state by the encoder's own keys; keys that are mixed stay as they are, and then fit no encoder."""
    if not all(key.startswith(PREFIX) for key in state):
        return dict(state)
    return {key.removeprefix(PREFIX): value for key, value in state.items()}


def _whole(encoder_name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state as the encoder itself holds it, on the CPU: every key, its own shapes and dtypes."""
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        encoder = build_encoder(encoder_name)
    try:
        encoder.load_exactly(state)
    except SettingsError as error:
        raise SettingsError(
            f"The encoder cannot be exported. {error} BatchNorm that stays at the sites is not in the server's model: "
            "export from a site's, or let it travel."
        ) from None
    return {key: value.detach().contiguous() for key, value in sorted(encoder.state_dict().items())}


def _sorted_header(content: bytes) -> bytes:
    """Return a safetensors file with its header in sorted order: the library's changes from process to process."""
    end = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    header = json.dumps(json.loads(content[_LENGTH:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _LENGTH)  # the tensors begin at a multiple of 8 bytes
    return len(header).to_bytes(_LENGTH, "little") + header + content[end:]


def write_encoder(
    folder: Path,
    run: str,
    experiment: Experiment,
    tensors: Tensors,
    normalisation: Normalisation,
    start: Learned,
) -> str:
    """Write `encoder.safetensors`, and beside it `encoder.json` with what another run needs to know.

    Args:
        folder: Where they go.
        run: Name of the run.
        experiment: Its settings.
        tensors: A state that holds the whole encoder, by the network's keys; other keys are left out.
        normalisation: How the encoder's images were normalised.
        start: See `export_encoder`.

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
    digest = export_encoder(folder / "encoder.safetensors", name, state, normalisation, told, start)
    record: dict[str, Any] = {
        "encoder": name,
        "sha256": digest,
        "normalisation": normalisation,
        "provenance": told,
        **{name: value for name, value in start.items() if name in Learned.__annotations__},
        "use": HOW,
        "settings": experiment.agreed(),
        "versions": versions(),
    }
    write_json(folder / "encoder.json", record)
    return digest
