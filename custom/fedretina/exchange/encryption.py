"""Tensors that the server mixes without reading them: CKKS, a homomorphic encryption of real numbers.

Cheon, Kim, Kim, Song, "Homomorphic Encryption for Arithmetic of Approximate Numbers", ASIACRYPT 2017, as TenSEAL (extra
`he`) does it over Microsoft SEAL: ring degree 8192, primes of 60, 40 and 60 bits, scale 2^40; 128 bits of security, one
multiplication by a plain weight, an error below 1e-6. All sites share one secret key, so that each can open what is
mixed under it; the server holds the public half alone. It hides the head from the server, not from other sites, and a
site that hands the key to the server undoes it for all.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedretina.errors import DataError, RefusedError, SettingsError

if TYPE_CHECKING:  # a partition reads no keys, and what reads keys needs a partition's settings
    from fedretina.settings.exchange import ExchangeSettings
    from fedretina.settings.sums import SumsSettings

SITE_FILE, SERVER_FILE = "he-site.keys", "he-server.keys"
NO_KEYS = (
    "this run encrypts (exchange.encrypt), but this end has no keys: make them with `fedretina kit he-keys` and name "
    "the file as he_keys in the settings of this end."
)
_SLOTS = 4096  # numbers a ciphertext: half the ring degree
_ID = 16  # bytes that tell one pair of key files from another
_LENGTH = 8  # bytes of a ciphertext's length
_POLYNOMIALS = 2  # of a ciphertext that was encrypted, or multiplied by plain weights, and by nothing else
_LARGEST = 300_000  # bytes of one ciphertext: two polynomials of 8192 numbers in two primes, and a header
_NATIVE = (ValueError, RuntimeError, MemoryError, IndexError, OverflowError)  # what C++ exceptions become in Python


class HeadCipher:
    """One end's half of a consortium's keys.

    A sealed tensor is uint8 [bytes]: the keys' name, then ciphertexts of 4096 numbers, each after its length.

    Args:
        name: What tells this pair of files from another, 16 bytes.
        context: TenSEAL's context.
    """

    def __init__(self, name: bytes, context: Any) -> None:
        self._name = name
        self._context = context

    def seal(self, tensor: torch.Tensor) -> torch.Tensor:
        """Encrypt a tensor; twice the same gives other bytes, since CKKS draws afresh from the system's randomness."""
        import tenseal

        flat: list[float] = tensor.detach().cpu().reshape(-1).to(torch.float64).tolist()
        chunks = [flat[begin : begin + _SLOTS] for begin in range(0, len(flat), _SLOTS)]
        return self._packed([tenseal.ckks_vector(self._context, chunk).serialize() for chunk in chunks])

    def open(self, key: str, sealed: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Decrypt a tensor.

        Raises:
            RefusedError: It was sealed with other keys, or holds no ciphertext of that many numbers.
        """
        vectors = self._vectors(key, sealed, math.prod(shape), fresh=False)
        flat = [number for vector in vectors for number in vector.decrypt()]
        return torch.tensor(flat, dtype=torch.float64).reshape(shape).to(dtype)

    def require(self, key: str, sealed: torch.Tensor, numbers: int) -> None:
        """Refuse what could not be mixed, by mixing it with nothing.

        Raises:
            RefusedError: It was sealed with other keys, or holds no fresh ciphertext of that many numbers.
        """
        import tenseal

        for vector in self._vectors(key, sealed, numbers, fresh=True):
            try:
                vector * 0.5 + tenseal.ckks_vector(self._context, [0.0] * vector.size()) * 0.5
            except _NATIVE as error:
                raise RefusedError(f"tensor {key!r} holds a ciphertext that cannot be mixed.") from error

    def mix(self, weighted: Sequence[tuple[float, torch.Tensor]]) -> torch.Tensor:
        """The encrypted sum_i w_i x_i of tensors that `require` has passed, in their order.

        Raises:
            RefusedError: They cannot be mixed after all.
        """
        import tenseal

        mixed: list[Any] = []
        try:
            for weight, sealed in weighted:
                for at, data in enumerate(self._unpacked("", sealed)):
                    share = tenseal.ckks_vector_from(self._context, data) * weight
                    if at == len(mixed):
                        mixed.append(share)
                    else:
                        mixed[at] += share
            return self._packed([vector.serialize() for vector in mixed])
        except _NATIVE as error:
            raise RefusedError("the sites' encrypted tensors cannot be mixed.") from error

    def total(self, sealed: Sequence[torch.Tensor]) -> torch.Tensor:
        """The encrypted sum of tensors that `require` has passed, in their order.

        Nothing is multiplied, so numbers may be as large as 2^58, and the error does not grow with a weight.

        Raises:
            RefusedError: They cannot be added after all.
        """
        import tenseal

        summed: list[Any] = []
        try:
            for one in sealed:
                for at, data in enumerate(self._unpacked("", one)):
                    vector = tenseal.ckks_vector_from(self._context, data)
                    if at == len(summed):
                        summed.append(vector)
                    else:
                        summed[at] += vector
            return self._packed([vector.serialize() for vector in summed])
        except _NATIVE as error:
            raise RefusedError("the sites' encrypted tensors cannot be added.") from error

    def _vectors(self, key: str, sealed: torch.Tensor, numbers: int, fresh: bool) -> list[Any]:
        import tenseal

        require_sealed(key, sealed, numbers)
        parts = self._unpacked(key, sealed)
        sizes = [min(_SLOTS, numbers - begin) for begin in range(0, numbers, _SLOTS)]
        try:
            vectors = [tenseal.ckks_vector_from(self._context, data) for data in parts[: len(sizes) + 1]]
            if [vector.size() for vector in vectors] != sizes:
                raise RefusedError(
                    f"tensor {key!r} holds ciphertexts of another length, {numbers} numbers were expected."
                )
            sound = all(self._sound(vector, fresh) for vector in vectors)
        except _NATIVE as error:
            raise RefusedError(f"tensor {key!r} holds no ciphertext.") from error
        if sound:
            return vectors
        raise RefusedError(f"tensor {key!r} holds a ciphertext that cannot be mixed: it is not as a site seals one.")

    def _sound(self, vector: Any, fresh: bool) -> bool:
        """Whether a vector holds the one ciphertext that its size speaks of, of the form that sealing gives.

        TenSEAL believes what a message says of itself and computes with what is not there: a vector that claims a size
        and brings no ciphertext ends the process when it is added to.
        """
        levels = self._context.seal_context().data  # a weight takes a ciphertext from the first to the last
        known = [levels.first_parms_id()] if fresh else [levels.first_parms_id(), levels.last_parms_id()]
        held = vector.ciphertext()
        return len(held) == 1 and (
            held[0].size() == _POLYNOMIALS
            and held[0].parms_id() in known
            and held[0].scale == self._context.global_scale
            and held[0].is_ntt_form()
            and not held[0].is_transparent()
        )

    def _packed(self, parts: Sequence[bytes]) -> torch.Tensor:
        framed = b"".join(len(part).to_bytes(_LENGTH, "little") + part for part in parts)
        return torch.from_numpy(np.frombuffer(self._name + framed, dtype=np.uint8).copy())

    def _unpacked(self, key: str, sealed: torch.Tensor) -> list[bytes]:
        data = sealed.numpy().tobytes()
        if data[:_ID] != self._name:
            raise RefusedError(f"tensor {key!r} was sealed with other keys than this end has: give all ends one pair.")
        parts, at = [], _ID
        while at < len(data):
            length = int.from_bytes(data[at : at + _LENGTH], "little")
            parts.append(data[at + _LENGTH : at + _LENGTH + length])
            at += _LENGTH + length
        return parts


def require_sealed(key: str, tensor: torch.Tensor, numbers: int) -> None:
    """Refuse what cannot be a sealed tensor of so many numbers, without any keys: its type, shape and size.

    Raises:
        RefusedError: It is in the clear, or too large.
    """
    if tensor.dtype != torch.uint8 or tensor.dim() != 1:
        raise RefusedError(f"tensor {key!r} must travel encrypted, got {tensor.dtype} of shape {tuple(tensor.shape)}.")
    most = sealed_bytes(numbers)
    if tensor.numel() > most:
        raise RefusedError(
            f"tensor {key!r} holds {tensor.numel()} bytes, {numbers} encrypted numbers take at most {most}."
        )


def sealed_bytes(numbers: int) -> int:
    """Most bytes that a sealed tensor of so many numbers takes."""
    return _ID + math.ceil(numbers / _SLOTS) * (_LARGEST + _LENGTH)


def new_keys(folder: Path) -> tuple[Path, Path]:
    """Make a pair of key files: the sites', which is secret, and the server's.

    Raises:
        SettingsError: TenSEAL is not installed.
        DataError: A file is there already, or cannot be written.
    """
    tenseal = _tenseal()
    context = tenseal.context(
        tenseal.SCHEME_TYPE.CKKS, poly_modulus_degree=2 * _SLOTS, coeff_mod_bit_sizes=[60, 40, 60]
    )
    context.global_scale = 2.0**40
    name = secrets.token_bytes(_ID)
    paths = folder / SITE_FILE, folder / SERVER_FILE
    there = [path for path in paths if path.exists()]
    if there:
        raise DataError(f"{there[0]} is there already: name another folder, or remove it first.")
    made = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, private in zip(paths, (True, False), strict=True):
            held = context.serialize(True, private, False, False)  # public, secret, Galois, relinearisation keys
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                made.append(path)
                file.write(name + held)
    except OSError as error:
        for path in made:  # half of a pair is of no use, and would stand in the next one's way
            path.unlink(missing_ok=True)
        raise DataError(f"no keys can be written to {folder} ({error.strerror}): name another folder.") from error
    return paths


def cipher_for(
    exchange: ExchangeSettings, path: Path | None, private: bool, sums: SumsSettings | None = None
) -> HeadCipher | None:
    """The cipher that a run needs at one end; None where nothing is encrypted.

    Args:
        exchange: The run's settings.
        path: The end's key file.
        private: Whether the end opens what it gets: a site does, the server must not be able to.
        sums: The run's settings of sums, which are encrypted wherever there are keys.

    Raises:
        SettingsError: There is no key file, TenSEAL is not installed, or the file is the other end's.
        DataError: The file cannot be read.
    """
    if exchange.encrypt == "nothing" and sums is None:
        return None
    if path is None and sums is not None and sums.encrypt == "with_keys":
        return None
    if path is None:
        raise SettingsError(NO_KEYS)
    tenseal = _tenseal()
    try:
        held = path.read_bytes()
        context = tenseal.context_from(held[_ID:])
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"the key file {path} cannot be read ({error}): name one of `fedretina kit he-keys`, made with the TenSEAL "
            "that this environment has; another version's keys cannot be read."
        ) from error
    if context.is_private() != private:
        owner, right = ("server", SITE_FILE) if private else ("sites", SERVER_FILE)
        raise SettingsError(f"he_keys of this end names the file of the {owner}: it needs {right}.")
    return HeadCipher(held[:_ID], context)


def _tenseal() -> Any:
    try:
        import tenseal
    except ImportError as error:
        raise SettingsError(
            "this run encrypts (exchange.encrypt), but TenSEAL is not installed at this end: run "
            '`pip install "tenseal==0.3.18"`.'
        ) from error
    return tenseal
