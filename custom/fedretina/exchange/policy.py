"""A site's policy: what may leave, how exactly, and with how much noise; applied by the site's own filter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from fedretina.errors import RefusedError, SettingsError
from fedretina.exchange.noise import cost, gaussian, noise_source, spent
from fedretina.exchange.partition import SUMS, VARIANCES, Partition
from fedretina.exchange.payload import Payload, Tensors
from fedretina.settings.codec import CodecSettings, EncodingSettings
from fedretina.settings.columns import GROUP_SUMS
from fedretina.settings.exchange import Kind
from fedretina.settings.policy import GaussianNoise, PolicySettings, SvtNoise
from fedretina.settings.scalars import COUNTS, CURVE, held_back

Sparse = Callable[[Tensors, SvtNoise, np.random.Generator], dict[str, torch.Tensor]]


def require_kinds(policy: PolicySettings, kinds: Iterable[Kind]) -> None:
    """Refuse tensors of kinds that may not leave; asked before a run begins, and again of every answer.

    Args:
        policy: The site's policy.
        kinds: Kinds of the tensors that leave.

    Raises:
        RefusedError: One of them may not.
    """
    sent = set(kinds)
    refused = sorted(kind.value for kind in sent - policy.kinds)
    if refused:
        every = ", ".join(sorted(kind.value for kind in sent))
        raise RefusedError(
            f"this site's own policy lets no {' or '.join(refused)} pass, which this run sends: where the hospital "
            f"agrees, let `kinds` under `policy` in the site file name all that is sent ({every}), "
            f"beside what other runs send, such as `policy: {{kinds: [{every}]}}`; else choose a run that keeps it at "
            "the site."
        )


def require_numbers(policy: PolicySettings, codec: CodecSettings, parts: Partition) -> None:
    """Refuse a run whose answers leave in a form that the policy could not change, or must not.

    Sums may leave encrypted: their noise is added before.

    Args:
        policy: The site's policy.
        codec: How the run's updates are encoded.
        parts: What travels of the run's network, and what of it encrypted.

    Raises:
        SettingsError: The policy adds noise or rounds, and the run's updates travel encoded or encrypted.
        RefusedError: The policy asks for what would spoil the run's sums, or has noise for updates alone.
    """
    if parts.sums:
        _of_sums(policy)
        return
    if not policy.changes_tensors:
        return
    if isinstance(codec, EncodingSettings):
        raise SettingsError(
            f"this site's policy changes the numbers of an update before they leave (noise or mantissa_bits), and this "
            f"run's leave encoded (exchange.codec {codec.name!r}), after which nothing can be changed: run with "
            "exchange.codec 'none', or agree with the site on another policy."
        )
    sealed = sorted({parts.kinds[key].value for key in parts.sealed})
    if sealed:
        raise SettingsError(
            "this site's policy changes the numbers of an update before they leave (noise or mantissa_bits), and of "
            f"this run's {' and '.join(sealed)} leaves encrypted (exchange.encrypt), after which nothing can be "
            "changed: run with exchange.encrypt 'nothing', or agree with the site on another policy."
        )


def require_budget(
    policy: PolicySettings, ledgers: Iterable[Mapping[str, Any]], digest: str, sums: bool = False
) -> float:
    """Refuse a noised release that the site's budget no longer covers.

    Args:
        policy: The site's policy.
        ledgers: Lines of all ledgers of the site.
        digest: Of the release, before it was encrypted; one that the ledgers hold already costs nothing.
        sums: Whether it is one of sums.

    Returns:
        Epsilon of all releases of the site with this one.

    Raises:
        RefusedError: It would exceed `max_epsilon`.
    """
    noise = policy.sums_noise if sums else policy.noise
    if noise is None:
        return 0.0
    price = cost(noise)
    after = spent([*ledgers, {"digest": digest, "privacy": price._asdict()}])
    epsilon = after.total(1e-5 if isinstance(noise, SvtNoise) else noise.delta)
    if noise.max_epsilon is not None and epsilon > noise.max_epsilon:
        raise RefusedError(
            f"this site's privacy budget is spent: with this update epsilon would be {epsilon:.3g}, its policy "
            f"allows {noise.max_epsilon:.3g}."
        )
    return epsilon


def apply_policy(
    policy: PolicySettings, payload: Payload, received: Tensors | None, key: Callable[[], bytes], sparse: Sparse
) -> tuple[Payload, dict[str, Any]]:
    """Turn an answer into what may leave.

    Args:
        policy: The site's policy.
        payload: The answer, its kinds checked.
        received: The tensors that its order brought; None where they are not known.
        key: Gives the site's secret for its noise.
        sparse: The sparse vector technique.

    Returns:
        What may leave, and what was done, for the ledger.

    Raises:
        RefusedError: The policy needs what the round began with, and it is not known, or a tensor holds no
            real numbers.
    """
    done: dict[str, Any] = {}
    open_ = {
        name: value
        for name, value in payload.scalars.items()
        if GROUP_SUMS.get(name, "") in {"", *policy.subgroups} and (policy.referral_curve or name not in CURVE)
    }
    held = held_back(open_, policy.hold_back)
    scalars = {name: value for name, value in open_.items() if name not in held}
    if held:
        done["held_back"] = sorted(held)
    if policy.scalar_digits is not None:
        whole = COUNTS.keys() | GROUP_SUMS.keys() | CURVE.keys()
        scalars = {
            name: value if name in whole else significant(value, policy.scalar_digits)
            for name, value in scalars.items()
        }
        done["scalar_digits"] = policy.scalar_digits
    tensors: Tensors = payload.tensors
    if any(key.startswith(SUMS) for key in tensors):
        done |= _of_sums(policy)
    elif tensors and policy.changes_tensors:
        if received is None:
            raise RefusedError("the aggregate that this answer began with is not known, so it cannot be made safe.")
        tensors, privacy = _changed(policy, tensors, received, key, sparse)
        done |= privacy
    return Payload(tensors, scalars, payload.stamp), done


def _of_sums(policy: PolicySettings) -> dict[str, Any]:
    """What was done to sums, for the ledger: the site adds its noise before it encrypts, so not here.

    Raises:
        RefusedError: The policy asks for what would spoil sums, or has noise for updates alone.
    """
    if policy.mantissa_bits is not None:
        raise RefusedError(
            "this site's policy rounds what leaves (mantissa_bits), after which sums are not those of any images: "
            "the site may take part in runs that train, or take that setting out."
        )
    if policy.noise is not None and policy.sums_noise is None:
        raise RefusedError(
            "this site's policy adds noise to updates, and says nothing of sums, which are none: the site may set "
            "policy.sums_noise."
        )
    if policy.sums_noise is None:
        return {}
    price = {name: value for name, value in cost(policy.sums_noise)._asdict().items() if value}
    return {"privacy": {"kind": "sums"} | policy.sums_noise.model_dump(exclude={"max_epsilon"}) | price}


def _changed(
    policy: PolicySettings, tensors: Tensors, received: Tensors, key: Callable[[], bytes], sparse: Sparse
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    done: dict[str, Any] = {}
    floating = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    if len(floating) < len(tensors):
        name = sorted(set(tensors) - set(floating))[0]
        raise RefusedError(f"tensor {name!r} holds no real numbers, which this site's policy cannot make safe.")
    # Statistics and controls are no part of the model that came down, so they count from zero.
    base = {name: received.get(name, torch.zeros_like(tensor)) for name, tensor in floating.items()}
    update = {name: tensor - base[name] for name, tensor in floating.items()}
    if policy.noise is not None:
        source = noise_source(key(), update, policy.noise)
        if isinstance(policy.noise, GaussianNoise):
            update = gaussian(update, policy.noise, source)
        else:
            update = sparse(update, policy.noise, source)
        price = {name: value for name, value in cost(policy.noise)._asdict().items() if value}
        done["privacy"] = policy.noise.model_dump(exclude={"max_epsilon"}) | price
    if policy.mantissa_bits is not None:
        update = {name: rounded(tensor, policy.mantissa_bits) for name, tensor in update.items()}
        done["mantissa_bits"] = policy.mantissa_bits
    changed = {name: base[name] + update[name] for name in update}
    # Noise or rounding can make a small variance negative, and the server takes no such update.
    return {name: tensor.clamp(min=0) if name.endswith(VARIANCES) else tensor for name, tensor in changed.items()}, done


def rounded(tensor: torch.Tensor, bits: int) -> torch.Tensor:
    """Round to `bits` binary digits after the leading one, to even on a tie; at 7 bits as bfloat16 does."""
    mantissa, exponent = torch.frexp(tensor)  # mantissa in [0.5, 1), so its leading digit is one of the bits + 1
    return torch.ldexp(torch.round(mantissa * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent)


def significant(value: float, digits: int) -> float:
    """Round to so many significant decimal digits."""
    return float(f"{value:.{digits - 1}e}")
