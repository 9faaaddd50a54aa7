"""How a trained model answers: the settings of each estimator, and what its class can do.

What an estimator reads is said here, where checks of a run can read it without torch; `uncertainty.estimators` refuses
settings that say what cannot be.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedretina.settings.choice import Choice


class EvaluationSettings(Choice):
    """How a trained model answers and what its AUC is computed from.

    Attributes:
        auc_input: What is ranked. "expected_probability" is alpha/S, which the clinician is shown; "belief" e/S;
            "warmed_belief" the softmax of belief / tau; "logits_softmax" the softmax of raw logits, which the official
            FedUAA code ranks; these read the final head. "answer" is what the estimator answers.
        passes: Forward passes with dropout at work (MC-dropout); 1 asks once, without dropout.
        range: Smallest and largest uncertainty that the estimator can give; within 0 to 1, where theta is looked for.
        evidential: Whether it reads logits as evidence, not as logs of probabilities.
        least_members: Of how many answers it makes its own at least. The members are early exits with the final head,
            passes of dropout, or several runs.
        most_members: Of how many at most, the last ones: 1 where it reads the final head of the last pass alone, 2
            where it reads a gate beside it; None for any number.
    """

    key: ClassVar[str] = "estimator"
    default: ClassVar[str | None] = "evidence"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    evidential: ClassVar[bool] = False
    least_members: ClassVar[int] = 1
    most_members: ClassVar[int | None] = None
    estimator: str
    auc_input: str
    passes: int = Field(default=1, ge=1, le=100)

    @property
    def gate(self) -> float | None:
        """Share of a site's images that its gate (`networks.gate`) lets through, for an estimator that reads one.

        What the gate says stands as a member before the final head's. It is fitted with heads from sums, so other runs
        refuse such an estimator. None where none is read.
        """
        return None

    @model_validator(mode="after")
    def _every_pass_is_read(self) -> Self:
        if self.most_members is not None and self.passes > self.most_members:
            ensembles = [name for name, one in EvaluationSettings.choices().items() if one.most_members is None]
            raise ValueError(
                f"passes is {self.passes}, but estimator {self.estimator!r} reads one alone: set it to 1, or choose "
                f"one of {', '.join(ensembles)}."
            )
        return self


class SoftmaxSettings(EvaluationSettings):
    """The softmax of the final head with its entropy.

    Attributes:
        estimator: "softmax".
        auc_input: "logits_softmax" and "answer" are the same here.
    """

    most_members: ClassVar[int | None] = 1
    estimator: Literal["softmax"] = "softmax"
    auc_input: Literal["logits_softmax", "answer"] = "logits_softmax"


class EvidenceSettings(EvaluationSettings):
    """Expected probability alpha/S with u = K/S of the final head.

    Attributes:
        estimator: "evidence".
    """

    evidential: ClassVar[bool] = True
    most_members: ClassVar[int | None] = 1
    estimator: Literal["evidence"] = "evidence"
    auc_input: Literal["expected_probability", "belief", "logits_softmax", "warmed_belief", "answer"] = (
        "expected_probability"
    )


class SoftmaxMeanSettings(EvaluationSettings):
    """The members' mean softmax with its entropy.

    Attributes:
        estimator: "softmax_mean".
    """

    estimator: Literal["softmax_mean"] = "softmax_mean"
    auc_input: Literal["answer"] = "answer"


class SoftmaxDisagreementSettings(EvaluationSettings):
    """The members' mean softmax with what they disagree on, which tells out-of-distribution images.

    Attributes:
        estimator: "softmax_disagreement".
    """

    least_members: ClassVar[int] = 2
    estimator: Literal["softmax_disagreement"] = "softmax_disagreement"
    auc_input: Literal["answer"] = "answer"


class EvidenceMeanSettings(EvaluationSettings):
    """The means of the members' alpha/S and u.

    Attributes:
        estimator: "evidence_mean".
    """

    evidential: ClassVar[bool] = True
    estimator: Literal["evidence_mean"] = "evidence_mean"
    auc_input: Literal["answer"] = "answer"


class EvidenceDempsterSettings(EvaluationSettings):
    """The members' evidence fused by Dempster's rule.

    Attributes:
        estimator: "evidence_dempster".
    """

    evidential: ClassVar[bool] = True
    estimator: Literal["evidence_dempster"] = "evidence_dempster"
    auc_input: Literal["answer"] = "answer"


class SoftmaxGatedSettings(EvaluationSettings):
    """The softmax of the final head with 1 - max p, and 1 for an image unlike the site's own training images.

    Attributes:
        estimator: "softmax_gated".
        auc_input: "logits_softmax" and "answer" are the same here.
        within: Share of images like the validation images that are not called unlike them. With less of it more
            strangers are noticed, and more of the site's own go to a doctor. Validation images fewer than
            within / (1 - within), 19 for 0.95, cannot tell so rare a case: then only what lies beyond all of them is.
    """

    least_members: ClassVar[int] = 2
    most_members: ClassVar[int | None] = 2
    estimator: Literal["softmax_gated"] = "softmax_gated"
    auc_input: Literal["logits_softmax", "answer"] = "logits_softmax"
    within: float = Field(default=0.95, ge=0.5, lt=1)

    @property
    def gate(self) -> float | None:
        """See `EvaluationSettings.gate`."""
        return self.within
