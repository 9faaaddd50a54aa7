"""A site's policy: what may leave, how exactly, and with how much noise; applied by the site's own filter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedretina.errors import RefusedError
from fedretina.exchange.kinds import Kind
from fedretina.exchange.min_count import SCALARS as COUNTS
from fedretina.exchange.noise import GaussianNoise, SvtNoise, cost, gaussian, noise_source, spent
from fedretina.exchange.payload import RANGES, Payload, Tensors

Sparse = Callable[[Tensors, SvtNoise, np.random.Generator], dict[str, torch.Tensor]]


class PolicySettings(BaseModel):
    """What a site lets go.

    Attributes:
        kinds: Kinds of tensors that may leave; an answer with another kind is refused. `head` and `exit` need to be
            named by the site, for jobs whose heads travel.
        hold_back: Scalars that do not leave, whatever the job asks; `images` is n, the number of training images.
        mantissa_bits: Numbers of an update are rounded to so many bits after the leading one: 10 as in float16, 7 as
            in bfloat16. None for all of them. The update is the difference from the aggregate that the round began
            with, which the server has; bytes on the wire stay.
        scalar_digits: Scalars are rounded to so many significant decimal digits, save the counts that `data.min_count`
            guards (bin_..., confusion_...), which would no longer add up; none for all of them.
        noise: Noise on the update's numbers; none by default. Scalars are not noised: hold back what tells too much.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kinds: frozenset[Kind] = frozenset(
        {Kind.ENCODER, Kind.NORM, Kind.STATISTIC, Kind.COUNTER, Kind.CONTROL, Kind.PROJECTOR, Kind.CALIBRATION}
    )
    hold_back: frozenset[str] = frozenset()
    mantissa_bits: int | None = Field(default=None, ge=1, le=22)
    scalar_digits: int | None = Field(default=None, ge=1, le=16)
    noise: GaussianNoise | SvtNoise | None = Field(default=None, discriminator="kind")

    @field_validator("hold_back")
    @classmethod
    def _can_do_without(cls, names: frozenset[str]) -> frozenset[str]:
        optional = {name for name, (_, _, needed) in RANGES.items() if not needed}
        strangers = sorted(names - optional)
        if strangers:
            listed = ", ".join(sorted(optional - COUNTS.keys()))
            raise ValueError(
                f"{strangers[0]!r} cannot be held back: a run can do without {listed}, and without the counts "
                "(bin_..., confusion_...), of which data.min_count holds back all at once."
            )
        return names

    @property
    def changes_tensors(self) -> bool:
        """Whether what leaves depends on the aggregate that the round began with."""
        return self.noise is not None or self.mantissa_bits is not None

    def require_kind(self, key: str, kind: Kind) -> None:
        """Refuse a tensor of a kind that may not leave.

        Raises:
            RefusedError: It may not.
        """
        if kind not in self.kinds:
            raise RefusedError(
                f"tensor {key!r} of kind {kind.value} may not pass by this site's own policy: "
                "let that kind be personal (exchange.personal), or agree with the site on another policy."
            )

    def require_budget(self, ledgers: Iterable[Mapping[str, Any]], digest: str) -> float:
        """Refuse a noised release that the site's budget no longer covers.

        Args:
            ledgers: Lines of all ledgers of the site.
            digest: Of the release; one that the ledgers hold already costs nothing.

        Returns:
            Epsilon of all releases of the site with this one.

        Raises:
            RefusedError: It would exceed `max_epsilon`.
        """
        if self.noise is None:
            return 0.0
        price = cost(self.noise)
        after = spent([*ledgers, {"digest": digest, "privacy": price._asdict()}])
        epsilon = after.total(self.noise.delta if isinstance(self.noise, GaussianNoise) else 1e-5)
        if self.noise.max_epsilon is not None and epsilon > self.noise.max_epsilon:
            raise RefusedError(
                f"this site's privacy budget is spent: with this update epsilon would be {epsilon:.3g}, its policy "
                f"allows {self.noise.max_epsilon:.3g}."
            )
        return epsilon

    def apply(
        self, payload: Payload, received: Tensors | None, key: Callable[[], bytes], sparse: Sparse
    ) -> tuple[Payload, dict[str, Any]]:
        """Turn an answer into what may leave.

        Args:
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
        scalars = {name: value for name, value in payload.scalars.items() if name not in self.hold_back}
        if len(scalars) < len(payload.scalars):
            done["held_back"] = sorted(set(payload.scalars) - set(scalars))
        if self.scalar_digits is not None:
            scalars = {
                name: value if name in COUNTS else significant(value, self.scalar_digits)
                for name, value in scalars.items()
            }
            done["scalar_digits"] = self.scalar_digits
        tensors: Tensors = payload.tensors
        if tensors and self.changes_tensors:
            if received is None:
                raise RefusedError("the aggregate that this answer began with is not known, so it cannot be made safe.")
            tensors, privacy = self._changed(tensors, received, key, sparse)
            done |= privacy
        return Payload(tensors, scalars, payload.stamp), done

    def _changed(
        self, tensors: Tensors, received: Tensors, key: Callable[[], bytes], sparse: Sparse
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        done: dict[str, Any] = {}
        floating = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
        if len(floating) < len(tensors):
            name = sorted(set(tensors) - set(floating))[0]
            raise RefusedError(f"tensor {name!r} holds no real numbers, which this site's policy cannot make safe.")
        # Statistics and controls are no part of the model that came down, so they count from zero.
        base = {name: received.get(name, torch.zeros_like(tensor)) for name, tensor in floating.items()}
        update = {name: tensor - base[name] for name, tensor in floating.items()}
        if self.noise is not None:
            source = noise_source(key(), update, self.noise)
            if isinstance(self.noise, GaussianNoise):
                update = gaussian(update, self.noise, source)
            else:
                update = sparse(update, self.noise, source)
            price = {name: value for name, value in cost(self.noise)._asdict().items() if value}
            done["privacy"] = self.noise.model_dump(exclude={"max_epsilon"}) | price
        if self.mantissa_bits is not None:
            update = {name: rounded(tensor, self.mantissa_bits) for name, tensor in update.items()}
            done["mantissa_bits"] = self.mantissa_bits
        return {name: base[name] + update[name] for name in update}, done


def rounded(tensor: torch.Tensor, bits: int) -> torch.Tensor:
    """Round to `bits` binary digits after the leading one, to even on a tie; at 7 bits as bfloat16 does."""
    mantissa, exponent = torch.frexp(tensor)  # mantissa in [0.5, 1), so its leading digit is one of the bits + 1
    return torch.ldexp(torch.round(mantissa * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent)


def significant(value: float, digits: int) -> float:
    """Round to so many significant decimal digits."""
    return float(f"{value:.{digits - 1}e}")
