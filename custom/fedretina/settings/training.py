"""How a site trains, and what follows training: fine-tuning, calibration, what is written."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedretina.settings.choice import GrownSettings, ReadBy, ReadSettings

LEAST_PATIENTS = 10
"""Patients of either kind for an AUC: with fewer, the place of one of them moves it by more than a tenth."""


class OptimiserSettings(ReadSettings):
    """Settings of the optimiser; by default it begins anew each round, as in FedUAA's released code.

    Attributes:
        optimizer: "sgd" or "adam".
        learning_rate: Step size before the schedule.
        momentum: SGD's momentum; refused under another optimiser.
        weight_decay: L2 decay, added to the gradient.
        schedule: How the rate goes over the phase: "constant", "cosine" (to 0 over the steps of all its rounds), or
            "exponential" (times `decay` each round).
        decay: Factor per round of the exponential schedule, refused under another; 0.998 in FedDyn's and FedDC's code.
        encoder_factor: The encoder's rate over the head's, for fine-tuning.
        optimizer_state: "reset" begins momentum and Adam's moments anew each round, since the aggregate is another
            point than the one that they describe; "keep" continues a site's own, as FedEE's code does with one Adam per
            site for the whole run; refused under "sgd" without momentum, which has none.
        clip_norm: Longest gradient, over all parameters and with the correction in it; none by default, 10 in FedDyn's
            and FedDC's code.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = Field(default=0.01, gt=0, le=100)
    momentum: Annotated[float, ReadBy("optimizer", ("sgd",))] = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0, lt=1)
    schedule: Literal["constant", "cosine", "exponential"] = "constant"
    decay: Annotated[float, ReadBy("schedule", ("exponential",))] = Field(default=0.998, gt=0, le=1)
    encoder_factor: float = Field(default=1.0, gt=0, le=1)
    optimizer_state: Literal["reset", "keep"] = "reset"
    clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _there_is_a_state_to_keep(self) -> Self:
        if self.optimizer_state == "keep" and self.optimizer == "sgd" and not self.momentum:
            raise ValueError(
                "optimizer_state is 'keep', but sgd without momentum has no state: set momentum, or optimizer_state to "
                "'reset'."
            )
        return self


class StretchSettings(BaseModel):
    """A part of a round in which a part of the network trains.

    Attributes:
        train: "all", "head" (the head and what else is not the encoder) or "encoder". What does not train is in
            evaluation mode: its BatchNorm's statistics stand still too.
        epochs: Local epochs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    train: Literal["all", "head", "encoder"] = "all"
    epochs: int = Field(default=1, ge=1, le=1000)


class TrainingSettings(GrownSettings, OptimiserSettings):
    """Local training of one round; the defaults are FedUAA's (released code: SGD, no momentum, no decay).

    Attributes:
        epochs: Local epochs per round (E), where no stretches are given.
        stretches: What trains, one after the other, within a round; FedRep trains the head, then the encoder.
        batch_size: Images per step.
        drop_last: Leave out the last batch when it is not full, as the released code does.
        threads: Torch threads. It is a setting, equal at all ends, because sums over other numbers of threads
            differ in the last bits.
        precision: `float32`; `tf32`, float32 whose products a card forms from the first 10 of 23 bits after the leading
            one of each factor: a relative error of up to 0.0005 in each, sums and all that is stored stay float32, and
            on the CPU nothing changes; or `bf16` autocast of the forward pass, 7 bits, whose losses stay float32. A run
            that goes on under another one has other bits.
        channels_last: Memory layout of images and weights; faster convolutions.
        device: `cpu`, `cuda`, or `auto` (CUDA when there is one). Equal bits need equal devices.
        kernels: How a card's convolutions are chosen: "repeatable" gives the same bits on the same card each time,
            "fastest" tries several at each new size of a batch and keeps the quickest, whichever that is today: a run
            that is repeated or resumed differs in the last bits. On the CPU it changes nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    newer: ClassVar[frozenset[str]] = frozenset({"kernels"})
    epochs: int = Field(default=1, ge=1, le=1000)
    stretches: tuple[StretchSettings, ...] = ()
    batch_size: int = Field(default=32, ge=2, le=4096)
    drop_last: bool = True
    threads: int = Field(default=1, ge=1, le=256)
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    channels_last: bool = True
    device: Literal["auto", "cpu", "cuda"] = "auto"
    kernels: Literal["repeatable", "fastest"] = "repeatable"

    @model_validator(mode="after")
    def _epochs_or_stretches(self) -> Self:
        if self.stretches and self.epochs != type(self).model_fields["epochs"].default:
            raise ValueError(
                f"epochs is {self.epochs}, but stretches have epochs of their own and replace it: leave one of the two "
                "out."
            )
        return self


_STRICT = ConfigDict(frozen=True, extra="forbid")


class TuneSettings(GrownSettings, ReadSettings):
    """How each site makes the model its own, beyond the parts that never travel; nothing of it leaves.

    Once, at the end, it fine-tunes the chosen model (+FT). Or in every round it trains a whole model of its own beside
    the one that travels, held to the aggregate by a proximal term (Ditto), and answers with that one. This is an axis
    of its own, and no correction: the model that travels is trained as the other axes say, drift correction included,
    and knows nothing of the site's own.

    Attributes:
        epochs: Local epochs over all parts; 0 for none.
        learning_rate: Rate; the training's own where it is not given. At the end all steps have this rate, whatever
            `training.schedule` says; a model that is trained in each round follows that schedule.
        when: "end" tunes once, after the rounds, what the chosen model is. "rounds" trains a model of the site's own in
            each round for these epochs, on top of the round's: as many passes over the data again. A site begins it at
            the aggregate of its first round, and keeps it from round to round.
        pull: lambda, how strongly the site's own model is held to the aggregate of the round, with
            lambda/2 ||v - w||^2 over the parameters that travel. 0 is a model that never hears of the others again; the
            paper tunes 0.05 to 2.
    """

    model_config = _STRICT
    newer: ClassVar[frozenset[str]] = frozenset({"when", "pull"})
    epochs: int = Field(default=0, ge=0, le=1000)
    learning_rate: float | None = Field(default=None, gt=0, le=100)
    when: Literal["end", "rounds"] = "end"
    pull: Annotated[float, Field(ge=0, le=100), ReadBy("when", ("rounds",))] = 0.1

    @property
    def at_end(self) -> bool:
        """Whether the chosen model is fine-tuned after the rounds."""
        return self.epochs > 0 and self.when == "end"

    @property
    def along(self) -> bool:
        """Whether each site trains a model of its own beside the one that travels."""
        return self.epochs > 0 and self.when == "rounds"

    def over(self, training: TrainingSettings) -> TrainingSettings:
        """Settings of a training over all parts, for as long and as fast as the site tunes a model."""
        changed = {"epochs": self.epochs, "stretches": (), "learning_rate": self.learning_rate}
        return training.model_copy(update={name: value for name, value in changed.items() if value is not None})

    @model_validator(mode="after")
    def _a_model_that_goes_along_is_trained(self) -> Self:
        if self.when == "rounds" and not self.epochs:
            raise ValueError(
                "when is 'rounds', but without epochs a model of the site's own would never train: set epochs."
            )
        return self

    @model_validator(mode="after")
    def _a_rate_is_read(self) -> Self:
        if self.learning_rate is not None and not self.epochs:
            raise ValueError(
                f"learning_rate is {self.learning_rate:g}, but without epochs nothing is tuned and nothing reads it: "
                "leave it out, or set epochs."
            )
        return self


class CalibrationSettings(BaseModel):
    """How temperatures are found where the network has a calibrator (multi-domain temperature scaling).

    Attributes:
        ridge: lambda of the regression of a temperature on features, in units of the features' mean square.
    """

    model_config = _STRICT
    ridge: float = Field(default=1.0, gt=0, le=1e6)


class ReportSettings(GrownSettings):
    """What is written at the end of a run beside models, cards and figures.

    Attributes:
        draws: Draws of the patient bootstrap behind each interval.
        page: Whether the HTML page is written at once; `fedretina report` writes it later from the stored record.
        least_patients: Fewest patients with a grade, and without it, for the grade to count in the mean "AUC over
            grades with support", by which rounds are chosen, too; and fewest behind a figure of a subgroup. With fewer
            the place of one patient moves an AUC by more than a tenth.
    """

    model_config = _STRICT
    newer: ClassVar[frozenset[str]] = frozenset({"least_patients"})
    draws: int = Field(default=1000, ge=10, le=100_000)
    page: bool = True
    least_patients: int = Field(default=LEAST_PATIENTS, ge=2, le=10_000)
