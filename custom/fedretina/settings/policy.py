"""What a site lets go, and the noise that it puts on it first: the site's own word, which no job can change."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedretina.settings.columns import GROUP_SUMS, Counted
from fedretina.settings.exchange import Kind
from fedretina.settings.scalars import COUNTS, CURVE, RANGES


class GaussianNoise(BaseModel):
    """Clip the whole update and add normal noise to each of its numbers.

    Attributes:
        kind: Names the mechanism.
        clip: Largest L2 norm of the update, the difference from the aggregate that the round started from.
        multiplier: Standard deviation of the noise over `clip`.
        delta: The probability that (epsilon, delta) leaves open; below 1 over the number of patients.
        max_epsilon: Nothing noised leaves once the site's budget, over all runs, would exceed it; none for no bound.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    kind: Literal["gaussian"]
    clip: float = Field(gt=0)
    multiplier: float = Field(gt=0)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    max_epsilon: float | None = Field(default=None, gt=0)


class SvtNoise(BaseModel):
    """Let only a part of the update's numbers leave, chosen and noised by the sparse vector technique.

    FLARE's filter SVTPrivacy does it (Li et al., MLMI 2019), and the budget is the one that it states: epsilon for the
    choice and for the release, added up over releases. It draws again until enough numbers are chosen, which the
    technique's proof does not cover; the Gaussian noise has no such doubt.

    Attributes:
        kind: Names the mechanism.
        fraction: Share of the update's numbers that leave; the others are sent as in the aggregate.
        epsilon: Budget of the choice, a release.
        epsilon_release: Budget of the noise on what is chosen, a release.
        clip: Each number of the update is cut to at most this size.
        threshold: Size above which a number tends to be chosen.
        max_epsilon: Nothing noised leaves once the site's budget, over all runs, would exceed it; none for no bound.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    kind: Literal["svt"]
    fraction: float = Field(default=0.1, gt=0, le=1)
    epsilon: float = Field(gt=0)
    epsilon_release: float = Field(gt=0)
    clip: float = Field(gt=0)
    threshold: float = Field(default=1e-6, ge=0)
    max_epsilon: float | None = Field(default=None, gt=0)


class SumsNoise(BaseModel):
    """Normal noise on sums over features; the unit that it protects is a patient, not the whole site.

    It needs a job with `sums.bound`. Then each patient counts as one image, whatever the images, and min_count holds
    back no grade: it would tell of single patients what the noise hides (`exchange.noise.noised_sums`).

    Attributes:
        multiplier: Standard deviation of the noise over the most that a patient can change the sums by.
        delta: The probability that (epsilon, delta) leaves open; below 1 over the number of patients.
        max_epsilon: Nothing noised leaves once the site's budget, over all runs, would exceed it; none for no bound.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    multiplier: float = Field(gt=0)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    max_epsilon: float | None = Field(default=None, gt=0)


class PolicySettings(BaseModel):
    """What a site lets go.

    Attributes:
        kinds: Kinds of tensors that may leave; an answer with another kind is refused. `head` and `exit` need to be
            named by the site, for jobs whose heads travel, and `sums` for heads from sums.
        hold_back: Scalars that do not leave, whatever the job asks; `images` is n, the number of training images. With
            a figure goes what says much the same: with `images` the number of patients and `images_train`, with
            `val_auc` and `test_auc` the means over grades with support, with a figure of the test its interval.
        mantissa_bits: Numbers of an update are rounded to so many bits after the leading one: 10 as in float16, 7 as
            in bfloat16. None for all of them. The update is the difference from the aggregate that the round began
            with, which the server has; bytes on the wire stay.
        scalar_digits: Scalars are rounded to so many significant decimal digits, save the counts that `data.min_count`
            guards (bin_..., confusion_..., group_..., curve_...), which would no longer add up; none for all of them.
        subgroups: Columns of the manifest of which sums over the test patients leave at the end: how many have
            referable disease, how many of them are found, how many have none, how many of them are cleared. None by
            default; a sum of few patients leaves in no case (`data.min_count`). Only columns that `data.columns` reads
            have any.
        referral_curve: Whether counts of the validation patients with referable disease leave, by the chance of disease
            that the model gives them (curve_...), in a job that asks for them (`referral_curve`): sites with few such
            patients draw their threshold towards the sum over the others. A count of few patients leaves in no case
            (`data.min_count`).
        noise: Noise on the update's numbers; none by default. Scalars are not noised: hold back what tells too much.
        sums_noise: Noise on sums over features, which are no update; none by default.
        small_grades_when_encrypted: Whether sums over features that leave encrypted hold grades of fewer patients than
            `data.min_count` too, where the site has that many patients in all. The server cannot read them, but every
            site opens the total: a grade that no other site has stands there alone. Without encryption, and by default,
            such grades stay out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kinds: frozenset[Kind] = frozenset(
        {Kind.ENCODER, Kind.NORM, Kind.STATISTIC, Kind.COUNTER, Kind.CONTROL, Kind.PROJECTOR, Kind.CALIBRATION}
    )
    hold_back: frozenset[str] = frozenset()
    mantissa_bits: int | None = Field(default=None, ge=1, le=22)
    scalar_digits: int | None = Field(default=None, ge=1, le=16)
    subgroups: frozenset[Counted] = frozenset()
    referral_curve: bool = False
    noise: GaussianNoise | SvtNoise | None = Field(default=None, discriminator="kind")
    sums_noise: SumsNoise | None = None
    small_grades_when_encrypted: bool = False

    @field_validator("hold_back")
    @classmethod
    def _can_do_without(cls, names: frozenset[str]) -> frozenset[str]:
        optional = {name for name, (_, _, needed) in RANGES.items() if not needed}
        unknown = sorted(names - optional)
        if unknown:
            listed = ", ".join(sorted(optional - COUNTS.keys() - GROUP_SUMS.keys() - CURVE.keys()))
            raise ValueError(
                f"{unknown[0]!r} cannot be held back: a run can do without {listed}, and without the counts "
                "(bin_..., confusion_...), of which data.min_count holds back all at once; sums of subgroups "
                "(group_...) leave only where policy.subgroups names their column, counts of ill patients (curve_...) "
                "only where policy.referral_curve is set."
            )
        return names

    @property
    def changes_tensors(self) -> bool:
        """Whether what leaves depends on the aggregate that the round began with."""
        return self.noise is not None or self.mantissa_bits is not None
