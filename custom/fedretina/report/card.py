"""The card of a site's model: what it is for, how it decides to refer, what to expect; plain values for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.evaluation.bootstrap import exact_interval
from fedretina.evaluation.doubt import DoubtChoice
from fedretina.evaluation.figures import FigureInterval, LabelledPredictions, Triage, triage
from fedretina.evaluation.metrics import accuracy, quadratic_kappa
from fedretina.evaluation.referral_curve import drawn_threshold, reasons, referral_scores
from fedretina.evaluation.support import SupportedAuc
from fedretina.evaluation.thresholds import ThresholdCurve, threshold_curve
from fedretina.evaluation.verdict import FEDERATED
from fedretina.report.card_words import not_promised
from fedretina.report.verdict_words import MODELS
from fedretina.rows import row
from fedretina.settings.encoder import Normalisation
from fedretina.settings.experiment import Experiment
from fedretina.settings.images import ImageSettings
from fedretina.settings.plan import Step
from fedretina.settings.scheme import GradingScheme, in_words
from fedretina.settings.site import PromiseSettings
from fedretina.uncertainty.grade_sets import grade_sets, sets_hold
from fedretina.uncertainty.promise import promised
from fedretina.uncertainty.referral import ReferralThreshold, referral_threshold
from fedretina.uncertainty.temperature import fit_temperature
from fedretina.version import __version__

CARD_FORMAT = 1


NOT_A_DEVICE = "Research software, not a medical device: a doctor decides, whatever it says."


NEARLY_ALL = 0.9


RULE = "u >= threshold; the threshold maximises 2 TPR - FPR for wrong answers on validation"


THRESHOLD_WORDS: Mapping[str, str] = {
    "measured": "",
    "refer_all": "On validation no threshold did better than referring every image, so every image is referred.",
    "too_few_images": "Validation has too few images for a threshold, so every image is referred.",
    "too_few_right": "Validation has too few right answers for a threshold, so every image is referred.",
    "tied": "The uncertainty was the same for every validation image and tells nothing, so every image is referred.",
    "no_errors": "Validation has no wrong answer, so an image is doubtful only beyond anything seen there.",
    "too_few_errors": "Validation has few wrong answers, so the threshold was set low enough to catch each of them.",
}


TEMPERATURE_WORDS: Mapping[str, str] = {
    "fitted": "",
    "too_few_images": "Validation has too few images to correct the probabilities.",
    "one_class": "Validation has one grade only, so the probabilities are not corrected.",
    "no_errors": "Validation has no wrong answer, so the probabilities are not corrected.",
    "too_few_errors": "Validation has too few wrong answers to correct the probabilities.",
    "uninformative": "On validation the probabilities were no better than equal ones, and nothing corrects them.",
    "at_bound": "The probabilities could not be corrected within sensible limits: do not rely on them.",
}
UNMEASURED = (
    "The uncertainty tells how little the model has to go on. It does not notice every strange image: by itself it may "
    "be sure of one of another kind."
)


_TRUTH = "The truth that it was measured against is the grade that this site's readers gave, right or wrong."


GATED = (
    "An image unlike those that this site trained on counts as doubtful. That notices other kinds of images and most "
    "spoiled ones, other devices at some sites only, and a disease that nobody graded hardly ever."
)


class SpoiledFigures(NamedTuple):
    """Validation images that were spoiled on purpose.

    Attributes:
        stopped: Whether the gate stopped each [N].
        uncertainty: The model's own doubt of each [N].
    """

    stopped: NDArray[np.bool_]
    uncertainty: NDArray[np.float64]


class LookFigures(NamedTuple):
    """What a card says of the gate before the model's answers.

    Attributes:
        gate: The gate's record, see `gate.gate.Gate`.
        own: Images of the test split that the site does not call ungradable, how many of them it stopped, and how many
            of the others it calls unusual.
        patients: Patients of all images of the test split, how many have an image that it stopped, and how many have
            one that it stops or calls unusual.
        spoiled: By what was done to them; empty where nothing was.
        odd: Of all images of the test split, whether the gate stops one or calls it unusual [N].
        silent: Of the same, whether the gate lets no answer be shown [N].
    """

    gate: Mapping[str, Any]
    own: Mapping[str, int]
    patients: Mapping[str, int]
    spoiled: Mapping[str, SpoiledFigures]
    odd: NDArray[np.bool_] | None = None
    silent: NDArray[np.bool_] | None = None


def build_card(
    *,
    experiment: Experiment,
    scheme: GradingScheme,
    run: str,
    site: str,
    synthetic: bool,
    chosen: Step,
    theta: Mapping[str, Any] | None,
    fingerprint: str,
    counts: Mapping[str, int],
    model_digest: str,
    normalisation: Normalisation,
    validation: LabelledPredictions,
    test: LabelledPredictions | None,
    data_changes: Sequence[str] = (),
    sums: Mapping[str, Any] | None = None,
    model: str = FEDERATED,
    verdict: Mapping[str, Any] | None = None,
    start: Mapping[str, Any] = MappingProxyType({}),
    public_sets: Sequence[str] = (),
    gate: bool | None = None,
    look: LookFigures | None = None,
    doubt: DoubtChoice | None = None,
    order: FigureInterval | None = None,
    asked: PromiseSettings | None = None,
    curve: Sequence[int] = (),
    support: SupportedAuc | None = None,
) -> dict[str, Any]:
    """Put together what a site must know of its model; plain values that JSON can hold.

    Temperature and threshold come from validation. What to expect of them comes from the test split, which has decided
    nothing. The card names the site's own grades and figures: it stays at the site.

    Args:
        experiment: The run's settings.
        scheme: The site's grades.
        run: Name of the run.
        site: Name of the site.
        synthetic: Whether the images are phantoms.
        chosen: The step whose model was chosen.
        theta: The site's UAW threshold of that step, as stored; not what refers an image.
        fingerprint: Of the site's data.
        counts: Images per split.
        model_digest: Of the model's tensors.
        normalisation: How the network normalises images; the settings alone do not tell where an exported encoder was
            the start.
        validation: Answers over the validation split, as the run's estimator gives them.
        test: The same over the test split; None where it was not read, and then nothing is promised.
        data_changes: Names of the steps that the site began with other data than those before.
        sums: Which head from sums answers, and how each did on validation; None of a model that was trained.
        model: Which of the models of a verdict it is; see `evaluation.verdict`.
        verdict: As `local.verdict.judged` gives it; None where the run compares nothing.
        start: Where the encoder's start comes from, a `networks.weights.Provenance`; empty where it is not known.
        public_sets: Names of the public sets that the site's images are of.
        gate: Whether the model knows how far an image lies from the site's own, or could not measure it; None where its
            estimator does not ask.
        look: The gate that stands before the model's answers; None where none was made.
        doubt: Which doubt `validation` and `test` have in place of u, and how it was chosen; None for the estimator's.
        order: How well that doubt puts wrong answers of the test split first.
        asked: What the site asks of its referral; None asks nothing.
        curve: The other sites' ill patients by chance of disease (`evaluation.referral_curve`); none were let go.
        support: Each grade's AUC on the test split with its patients; None where it is not known.

    Returns:
        The card.

    Raises:
        TrainingError: Answers that are not finite, or arrays that do not belong together.
    """
    threshold = referral_threshold(validation.uncertainty, validation.wrong)
    temperature = fit_temperature(validation.probabilities, validation.labels)
    ordered = experiment.images.ordered
    promise = None if asked is None else _promised(validation, threshold.value, scheme, asked)
    if promise is not None and asked is not None and asked.drawn and promise["reason"] == "too_few_patients":
        promise |= _drawn(validation, threshold.value, scheme, asked, curve if model == FEDERATED else None)
    least = None if promise is None else promise["threshold"]
    odd, silent = (None, None) if look is None else (look.odd, look.silent)
    expected = None if test is None else triage(test, threshold.value, scheme, least, odd, silent)
    return {
        "format": CARD_FORMAT,
        "notice": NOT_A_DEVICE,
        "intended_use": _intended_use(experiment.images, scheme),
        "not_intended": _not_intended(experiment.images),
        "limits": [
            *_changed(data_changes),
            *_seen(start, public_sets),
            *([_made(experiment.images)] if synthetic else []),
            *_limits(scheme, threshold, temperature.reason, expected, order),
            *([] if promise is None or promise["reason"] == "kept" else [not_promised(promise)]),
            GATED if gate else UNMEASURED,
            _TRUTH,
        ],
        "synthetic": synthetic,
        "fedretina": __version__,
        "site": site,
        "run": run,
        "row": experiment.row,
        "method": MODELS[model].format(method=row(experiment.row).title),
        "model": model,
        "verdict": None if verdict is None else dict(verdict),
        "chosen": chosen.name,
        "grades": list(scheme.grades),
        "scheme": scheme.model_dump(mode="json"),
        "estimator": experiment.evaluation.estimator,
        "theta": None if theta is None else dict(theta),
        "tau": experiment.tau,
        "temperature": temperature._asdict(),
        "referral": {
            "threshold": threshold.value,
            "rule": RULE,
            "reason": threshold.reason,
            "validation": {
                "images": threshold.images,
                "errors": threshold.errors,
                "caught": threshold.caught,
                "alarms": threshold.alarms,
            },
            "test": None if expected is None else _plain(expected),
            "curve": _curve(threshold_curve(validation, threshold.value, scheme, least)),
        },
        **({} if promise is None else {"promise": promise}),
        "sets": _sets(validation, test, scheme, ordered),
        "test": None if test is None or not len(test.labels) else _grading(test, scheme, support, ordered),
        "images": dict(counts),
        "data_fingerprint": fingerprint,
        "data_changes": list(data_changes),
        "model_digest": model_digest,
        "normalisation": normalisation,
        "encoder": _encoder(experiment, start),
        "transforms_digest": experiment.images.digest(),
        "settings": experiment.agreed(),
        **({} if sums is None else {"sums": dict(sums)}),
        **({} if gate is None else {"gate": _gate(gate, validation, test)}),
        **({} if look is None else {"look": _look(look, threshold.value)}),
        **(
            {} if doubt is None else {"doubt": {**doubt._asdict(), "order": None if order is None else order._asdict()}}
        ),
    }


def _promised(
    validation: LabelledPredictions, threshold: float, scheme: GradingScheme, asked: PromiseSettings
) -> dict[str, Any]:
    """The promise on validation, beside the other reasons to refer; the gate's are not counted on."""
    chance, referred = reasons(validation, threshold, scheme)
    return promised(chance, referred, validation.labels, validation.patients, scheme, asked)._asdict()


def _drawn(
    validation: LabelledPredictions,
    threshold: float,
    scheme: GradingScheme,
    asked: PromiseSettings,
    curve: Sequence[int] | None,
) -> dict[str, Any]:
    """What stands in the place of a promise that cannot be given; the curve is of the run's models alone."""
    if curve is None:
        return {"reason": "another_model"}
    found = drawn_threshold(referral_scores(validation, threshold, scheme), curve, asked)
    told = {"reason": "few_others"} if found is None else {"reason": "drawn", **found._asdict()}
    return {**told, "others": sum(curve)}


def _sets(
    validation: LabelledPredictions, test: LabelledPredictions | None, scheme: GradingScheme, ordered: bool
) -> dict[str, Any]:
    """The rule that makes sets of grades, and how it did on the test split."""
    rule = grade_sets(validation.probabilities, validation.labels, validation.patients, scheme, ordered)
    told: dict[str, Any] = {**rule._asdict(), "test": None}
    if test is not None and len(test.labels):
        held, patients, size = sets_hold(rule, test.probabilities, test.labels, test.patients, scheme)
        share = exact_interval(held, patients)
        told["test"] = None if share is None else {"held": share._asdict(), "size": size}
    return told


def _look(look: LookFigures, threshold: float) -> dict[str, Any]:
    spoiled = {
        name: {
            "images": len(one.stopped),
            "stopped": int(one.stopped.sum()),
            "doubtful": int((~(one.uncertainty < threshold)).sum()),
        }
        for name, one in look.spoiled.items()
    }
    return {"gate": dict(look.gate), "own": dict(look.own), "patients": dict(look.patients), "spoiled": spoiled}


def _gate(measures: bool, validation: LabelledPredictions, test: LabelledPredictions | None) -> dict[str, Any]:
    """How many of the site's own images count as unlike its own."""
    splits = {"validation": validation, "test": test}
    told = {
        name: {"images": len(one.labels), "beyond": int((one.uncertainty >= 1).sum())}
        for name, one in splits.items()
        if one is not None
    }
    return {"measures": measures, **told}


def _plain(expected: Triage) -> dict[str, dict[str, float] | None]:
    return {name: None if share is None else share._asdict() for name, share in expected._asdict().items()}


def _curve(curve: ThresholdCurve) -> dict[str, Any]:
    return {name: list(one) if isinstance(one, tuple) else one for name, one in curve._asdict().items()}


def _grading(
    test: LabelledPredictions, scheme: GradingScheme, support: SupportedAuc | None, ordered: bool
) -> dict[str, Any]:
    """Figures of the test split; quadratic kappa only where the grades have the order that it counts steps of."""
    counted = {} if support is None else {"support": _support(support, scheme)}
    return {
        **counted,
        "images": len(test.labels),
        "patients": len(set(test.patients)),
        "accuracy": accuracy(test.predicted, test.labels),
        "kappa": quadratic_kappa(test.predicted, test.labels) if ordered else None,
    }


def _support(support: SupportedAuc, scheme: GradingScheme) -> dict[str, Any]:
    grades = [{**one._asdict(), "grade": scheme.grades[one.grade]} for one in support.grades]
    return {"auc": support.value, "least": support.least, "grades": grades}


def _intended_use(images: ImageSettings, scheme: GradingScheme) -> list[str]:
    grades = ", ".join(in_words(grade) for grade in scheme.grades)
    return [
        f"For research. It gives {images.words} this site's grades ({grades}) and says of each how sure it is.",
        "It sorts them so that a doctor sees the doubtful ones first. It does not replace the doctor's own reading of "
        "each of them.",
    ]


def _not_intended(images: type[ImageSettings] | ImageSettings) -> list[str]:
    return [
        "Not for diagnosis or treatment, and never a reason for a patient not to be seen.",
        "Not for other sites, devices or ways of recording than those of this site, and for nothing but "
        f"{images.words}.",
        f"It knows no disease but those that the grades describe. None of its grades means {images.healthy}.",
    ]


def _changed(steps: Sequence[str]) -> list[str]:
    if not steps:
        return []
    return [
        f"The site's list of images, labels, patients and splits was changed while the run was under way ({steps[0]}"
        f"{' and later' if len(steps) > 1 else ''}): the model may have learned from images that it was then tested "
        "on, so every figure here may be too good."
    ]


def _encoder(experiment: Experiment, start: Mapping[str, Any]) -> dict[str, Any]:
    """Where the encoder comes from, with what the size of the images means for it."""
    traits, height = experiment.network.traits, experiment.images.shape[1]
    told = {"name": experiment.network.encoder, **start}
    if "layout" in start and traits.positions and traits.side != height:
        note = f"its positions, learned with images of {traits.side} pixels, are resampled for {height}"
        told["notes"] = [*start.get("notes", ()), note]
    return told


def _seen(start: Mapping[str, Any], public_sets: Sequence[str]) -> list[str]:
    """Whether the encoder may have seen the site's images before the run."""
    seen = sorted(set(start.get("sets", ())) & set(public_sets))
    if not seen:
        return []
    return [
        f"The site's images are of the public set {', '.join(seen)}, on which the encoder may have been pre-trained: "
        "it may have seen the very images that it was tested on, so every figure here may be too good."
    ]


def _made(images: type[ImageSettings] | ImageSettings) -> str:
    return (
        f"It learned from {images.words} made by a program, of no real patient. What it says of real ones means "
        "nothing."
    )


def _limits(
    scheme: GradingScheme,
    threshold: ReferralThreshold,
    temperature: str,
    expected: Triage | None,
    order: FigureInterval | None,
) -> list[str]:
    found = [
        "The site's scheme names no referable grades, so a grade alone refers nobody: only doubt and ungradable images "
        "do, and how many patients with disease would be missed cannot be told."
        if not scheme.referable
        else "",
        THRESHOLD_WORDS[threshold.reason],
        TEMPERATURE_WORDS[temperature],
        ("It would refer nearly every patient: it takes no work away" + _order_seen(order))
        if expected is not None and expected.load is not None and expected.load.value >= NEARLY_ALL
        else "",
        "The test split was not read, so nothing is known of what to expect." if expected is None else "",
        "The figures hold for patients like those of the test split: where disease is commoner, more are referred."
        if expected is not None
        else "",
    ]
    return [sentence for sentence in found if sentence]


def _order_seen(order: FigureInterval | None) -> str:
    """The end of a sentence on a model that refers nearly all: whether their order is of use."""
    if order is None:
        return "."
    seen = order.low is not None and order.low > 0.5
    return ", but it puts them in an order." if seen else ", and no order can be seen in its doubt."
