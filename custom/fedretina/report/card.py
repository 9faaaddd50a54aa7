"""The card of a site's model: what it is for, how it decides to refer, what to expect; and its page for clinicians."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.evaluation.bootstrap import exact_interval
from fedretina.evaluation.doubt import DoubtChoice
from fedretina.evaluation.figures import FigureInterval, LabelledPredictions, Triage, triage
from fedretina.evaluation.metrics import accuracy, quadratic_kappa
from fedretina.evaluation.support import SupportedAuc
from fedretina.evaluation.verdict import FEDERATED
from fedretina.plurals import counted
from fedretina.report.verdict_words import MODELS, kept_sentence, verdict_sentence
from fedretina.rows import row
from fedretina.settings.encoder import Normalisation
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Step
from fedretina.settings.scheme import GradingScheme, in_words
from fedretina.settings.site import PromiseSettings
from fedretina.uncertainty.grade_sets import grade_sets, sets_hold
from fedretina.uncertainty.promise import Promise, chance_of_disease, promised
from fedretina.uncertainty.referral import ReferralThreshold, refer, referral_threshold
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
    "be sure of one that is no retina at all."
)


_TRUTH = "The truth that it was measured against is the grade that this site's readers gave, right or wrong."


GATED = (
    "An image unlike those that this site trained on counts as doubtful. That notices other kinds of images and most "
    "spoiled photographs, other cameras at some sites only, and a disease that nobody graded hardly ever."
)


HEADS: Mapping[str, str] = {
    "own": "this site's own head",
    "federated": "the head from the sums of all sites",
    "both": "the mean of the two",
}
"""Heads from sums, in words."""
NOT_PROMISED: Mapping[str, str] = {
    "too_few_patients": "No promise can be given of how many ill patients pass: {patients} patients with referable "
    "disease are in the validation split, and {needed} are needed for what the site asks.",
    "no_referable_grades": "No promise can be given of how many ill patients pass, since the site's scheme names no "
    "referable grades.",
}
_ASKED = ("validation", "test")
_FIGURES = (
    ("load", "Patients that would be referred"),
    ("doubt_load", "Patients that would be referred for doubt alone"),
    ("missed", "Patients with referable disease that would be missed"),
    ("sensitivity", "Patients with referable disease that would be referred"),
    ("specificity", "Patients without it that would not be referred"),
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
        own: Images of the test split, and how many of them it stopped.
        spoiled: By what was done to them; empty where nothing was.
    """

    gate: Mapping[str, Any]
    own: Mapping[str, int]
    spoiled: Mapping[str, SpoiledFigures]


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
        support: Each grade's AUC on the test split with its patients; None where it is not known.

    Returns:
        The card.

    Raises:
        TrainingError: Answers that are not finite, or arrays that do not belong together.
    """
    threshold = referral_threshold(validation.uncertainty, validation.wrong)
    temperature = fit_temperature(validation.probabilities, validation.labels)
    promise = None if asked is None else _promised(validation, threshold.value, scheme, asked)
    least = None if promise is None else promise.threshold
    expected = None if test is None else triage(test, threshold.value, scheme, least)
    return {
        "format": CARD_FORMAT,
        "notice": NOT_A_DEVICE,
        "intended_use": _intended_use(scheme),
        "not_intended": _not_intended(),
        "limits": [
            *_changed(data_changes),
            *_seen(start, public_sets),
            *_limits(scheme, synthetic, threshold, temperature.reason, expected, order),
            *([] if promise is None or promise.reason == "kept" else [_not_promised(promise._asdict())]),
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
        },
        **({} if promise is None else {"promise": promise._asdict()}),
        "sets": _sets(validation, test, scheme, experiment.images.ordered),
        "test": None if test is None or not len(test.labels) else _grading(test, scheme, support),
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
) -> Promise:
    """The promise on validation, beside the other reasons to refer; the gate's are not counted on."""
    answers = zip(validation.predicted.tolist(), validation.uncertainty.tolist(), strict=True)
    referred = [refer(grade, u, threshold, scheme).refer for grade, u in answers]
    chance = chance_of_disease(validation.probabilities, scheme)
    return promised(chance, referred, validation.labels, validation.patients, scheme, asked)


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
    return {"gate": dict(look.gate), "own": dict(look.own), "spoiled": spoiled}


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


def _grading(test: LabelledPredictions, scheme: GradingScheme, support: SupportedAuc | None) -> dict[str, Any]:
    counted = {} if support is None else {"support": _support(support, scheme)}
    return {
        **counted,
        "images": len(test.labels),
        "patients": len(set(test.patients)),
        "accuracy": accuracy(test.predicted, test.labels),
        "kappa": quadratic_kappa(test.predicted, test.labels),
    }


def _support(support: SupportedAuc, scheme: GradingScheme) -> dict[str, Any]:
    grades = [{**one._asdict(), "grade": scheme.grades[one.grade]} for one in support.grades]
    return {"auc": support.value, "least": support.least, "grades": grades}


def _intended_use(scheme: GradingScheme) -> list[str]:
    grades = ", ".join(in_words(grade) for grade in scheme.grades)
    return [
        f"For research. It gives a photograph of the retina one of this site's grades ({grades}) and says how sure it "
        "is.",
        "It sorts photographs so that a doctor sees the doubtful ones first. It does not replace the doctor's own "
        "reading of each of them.",
    ]


def _not_intended() -> list[str]:
    return [
        "Not for diagnosis or treatment, and never a reason for a patient not to be seen.",
        "Not for other sites, cameras or ways of taking photographs than those of this site, nor for OCT or any other "
        "kind of image.",
        "It knows no disease but the one that the grades describe. The best grade does not mean a healthy eye.",
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
    side, height = experiment.network.traits.side, experiment.images.shape[1]
    told = {"name": experiment.network.encoder, **start}
    if "layout" in start and side not in (None, height):
        note = f"its positions, learned with images of {side} pixels, are resampled for {height}"
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


def pretrained_words(encoder: Mapping[str, Any]) -> str:
    """What an encoder had learned before the run, in a sentence; `encoder` is the card's."""
    name = encoder.get("name")
    if "words" in encoder:
        return f"Its encoder, {name}, began as an earlier run left it: {encoder['words']}."
    if "pretrained_on" in encoder:
        notes = "".join(f" {note[0].upper()}{note[1:]}." for note in encoder.get("notes", ()))
        return (
            f"Its encoder, {name}, was pre-trained on: {encoder['pretrained_on']} (form: {encoder['layout']}; licence: "
            f"{encoder['licence']}).{notes}"
        )
    return f"Its encoder, {name}, was not pre-trained." if encoder.get("source") == "none" else ""


def _limits(
    scheme: GradingScheme,
    synthetic: bool,
    threshold: ReferralThreshold,
    temperature: str,
    expected: Triage | None,
    order: FigureInterval | None,
) -> list[str]:
    found = [
        "It learned from drawn images of no real eye. What it says of a real photograph means nothing."
        if synthetic
        else "",
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


def order_words(card: Mapping[str, Any]) -> list[str]:
    """How well a card's doubt puts wrong answers first, in sentences; older cards do not say."""
    doubt = card.get("doubt")
    if doubt is None:
        return []
    own, other = (_number(doubt[name]) for name in ("estimator", "unlikely"))
    used = (
        f"Its doubt is 1 less the chance of the grade that it answers, which found wrong answers on validation better "
        f"than the u of its method (AUROC {other} against {own}); where this card says u, it is that."
        if doubt["used"] == "unlikely"
        else f"Its doubt is the u of its method; 1 less the chance of its answer would be the other choice (AUROC for "
        f"wrong answers on validation {own} against {other})."
    )
    order = doubt["order"]
    if order is None or order["value"] is None:
        return [used, "Whether it puts wrong answers first cannot be told from the test images."]
    told = f"On the test images its AUROC for wrong answers is {order['value']:.2f}"
    if order["low"] is None:
        return [used, f"{told}, with no interval: too few patients to tell an order from none."]
    told += f" (95 % interval {order['low']:.2f} to {order['high']:.2f}; 0.5 says nothing)"
    if order["low"] > 0.5:
        return [used, f"{told}: wrong answers tend to come first."]
    wrong = "it even puts right answers first" if order["high"] < 0.5 else "no order can be seen in it"
    return [used, f"{told}: {wrong}."]


def look_words(card: Mapping[str, Any]) -> list[str]:
    """What is looked for before an answer, in sentences; cards of models without a gate say that nothing is."""
    look = card.get("look")
    if look is None:
        return ["Nothing looks at a photograph before it is answered: this model has no gate."]
    said = [
        "Before it answers, a gate looks at the photograph. One of another kind is refused; one that is too dark, "
        "overexposed, blurred or covered is referred as ungradable, both without a grade; one unlike this site's "
        "photographs, such as another camera's, is referred with that mark, whatever its grade."
    ]
    if look["gate"]["limit"] is None:
        said.append("This site has too few images to tell how its own look, so only what is odd anywhere is stopped.")
    own = look["own"]
    if own["images"]:
        said.append(f"Of the site's own test images it stops {own['stopped']} of {own['images']}.")
    spoiled = [
        f"{name}: {one['stopped']} of {one['images']} stopped, {one['doubtful']} doubtful by the model itself"
        for name, one in look["spoiled"].items()
    ]
    if spoiled:
        said.append(f"Tried on validation images that were spoiled on purpose: {'; '.join(spoiled)}.")
    return said


def _not_promised(promise: Mapping[str, Any]) -> str:
    return NOT_PROMISED[promise["reason"]].format(**promise)


def promise_words(card: Mapping[str, Any]) -> list[str]:
    """What the site asked of its referral, what it takes, and how it did on the test patients; [] if nothing was."""
    promise = card.get("promise")
    if promise is None:
        return []
    asked = (
        f"This site asks that at most {_percent(promise['missed'])} % of its patients with referable disease pass "
        f"without being referred, and to be {_percent(promise['sure'])} % sure of it."
    )
    if promise["reason"] != "kept":
        return [asked, _not_promised(promise)]
    stands = (
        f"{promise['patients']} such patients of validation stand behind it, of whom {promise['passed']} pass and "
        f"{promise['allowed']} may."
    )
    if promise["threshold"] is None:
        return [asked, f"The reasons above keep that by themselves: {stands}"]
    return [
        asked,
        f"So an image is referred as well when its chance of referable disease is {_percent(promise['threshold'])} % "
        f"or more, as the model gives it before its temperature: {stands}",
        "It holds for patients like those of validation; another camera or other patients are not among them.",
    ]


def set_sentences(card: Mapping[str, Any]) -> list[str]:
    """What the sets of grades promise, and how they did; older cards have none."""
    rule = card.get("sets")
    if rule is None:
        return []
    if rule["limit"] is None:
        return [
            f"No sets of grades are given: {rule['patients']} gradable validation patients are too few to say which "
            f"grades hold the true one for {_percent(1 - rule['wrong'])} % of patients."
        ]
    kind = "neighbouring grades" if rule["ordered"] else "grades"
    said = [
        f"Beside its grade it names a set of {kind} that holds the true one. For {_percent(1 - rule['wrong'])} % of "
        f"patients or more all their sets do, by {rule['patients']} validation patients."
    ]
    if rule["test"] is not None:
        said.append(
            f"Of the test patients it was {share_words(rule['test']['held'])}; a set had {rule['test']['size']:.1f} "
            "grades on average."
        )
    return said


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def share_words(share: Mapping[str, float] | None) -> str:
    """A share with its interval in words: "34 of 120 (28 %; 95 % interval 21 to 37 %)"."""
    if share is None:
        return "cannot be told"
    value, low, high = (_percent(share[name]) for name in ("value", "low", "high"))
    return f"{share['k']:.0f} of {share['n']:.0f} ({value} %; 95 % interval {low} to {high} %)"


def threshold_words(card: Mapping[str, Any]) -> str:
    """How an image is called doubtful, and how that did on validation."""
    referral, seen = card["referral"], card["referral"]["validation"]
    right = seen["images"] - seen["errors"]
    measured = (
        f"On this site's {seen['images']} validation images this marked {seen['caught']} of {seen['errors']} wrong "
        f"answers and {seen['alarms']} of {right} right ones."
    )
    if referral["threshold"] <= 0:
        return f"Every image counts as doubtful. {measured}"
    return f"An image counts as doubtful when its u is {referral['threshold']:.3f} or more. {measured}"


def gate_words(card: Mapping[str, Any]) -> str:
    """What becomes of images that are unlike the site's own; "" where the model does not ask."""
    gate = card.get("gate")
    if gate is None:
        return ""
    if not gate["measures"]:
        return " This site's images do not tell how unlike them another is, so none counts as strange."
    own = " and ".join(
        f"{gate[name]['beyond']} of {gate[name]['images']} {name} images" for name in _ASKED if name in gate
    )
    return (
        " Where an image is unlike those that the site trained on (another kind of image, a spoiled one, often another "
        f"camera), u is 1 and it is doubtful, however sure its grade seems. Of the site's own, {own} are."
    )


def _chance(card: Mapping[str, Any]) -> bool:
    return (card.get("promise") or {}).get("threshold") is not None


def card_page(card: Mapping[str, Any]) -> str:
    """Render a card, one page.

    Args:
        card: As `build_card` gives it.

    Returns:
        Markdown, with a final newline.
    """
    referral = card["referral"]
    referable = [in_words(grade) for grade in card["scheme"]["referable"]]
    lines = [
        f"# Model card: {_escaped(card['site'])}",
        "",
        f"**{card['notice']}**",
        "",
        "## What it is for",
        "",
        *_bullets(card["intended_use"]),
        "",
        "## What it is not for",
        "",
        *_bullets(card["not_intended"]),
        "",
        *_compared(card),
        "## When it refers",
        "",
        "A patient is referred when any image is. An image is referred when one of these holds:",
        "",
        *_bullets(
            [
                f"its grade is {_escaped(', '.join(referable))}" if referable else "",
                f"its grade is {_escaped(in_words(card['scheme']['ungradable']))}"
                if card["scheme"]["ungradable"]
                else "",
                "it is doubtful",
                "its chance of referable disease is more than the site lets pass" if _chance(card) else "",
                "it cannot be read",
                "the gate stops it" if "look" in card else "",
            ]
        ),
        "",
        " ".join(look_words(card)),
        "",
        threshold_words(card) + " u runs from 0, sure, to 1, the model has nothing to go on." + gate_words(card),
        "",
        *[
            line
            for words in (order_words(card), promise_words(card), set_sentences(card))
            if words
            for line in (" ".join(words), "")
        ],
        "## What to expect",
        "",
        *_expected(card, referral["test"]),
        "",
        "## Limits",
        "",
        *_bullets(card["limits"]),
        "",
        "## Where it comes from",
        "",
        f"Method {card['method']} (row {card['row']}), run {_escaped(card['run'])}"
        + (f", model of {card['chosen']}" if card.get("model", FEDERATED) == FEDERATED else "")
        + f", fedretina {card['fedretina']}. "
        + _images(card)
        + _head(card),
        "",
        *_pretrained(card),
        f"Temperature {card['temperature']['value']:.2f} on the probabilities shown. "
        + f"Model {card['model_digest'][:12]}, data {card['data_fingerprint'][:12]}.",
    ]
    return "\n".join(lines) + "\n"


def verdict_words(card: Mapping[str, Any]) -> list[str]:
    """The verdict of a card in sentences; cards of runs that compare nothing, and older ones, have none."""
    verdict = card.get("verdict")
    if not verdict:
        return []
    words = [verdict_sentence(verdict), kept_sentence(verdict)]
    if card["model"] != verdict["kept"]:
        words.append("This is the model trained with the others, which is not the one that is kept.")
    return words


def _compared(card: Mapping[str, Any]) -> list[str]:
    words = verdict_words(card)
    return [] if not words else ["## The verdict", "", _escaped(" ".join(words)), ""]


def _expected(card: Mapping[str, Any], figures: Mapping[str, Any] | None) -> list[str]:
    if figures is None:
        return ["Nothing is known: the test split was not read."]
    table = ["| on this site's test patients | |", "|---|---|"]
    table += [f"| {words} | {share_words(figures[name])} |" for name, words in _FIGURES]
    grading = card["test"]
    if grading is None:
        return table
    kappa = "" if grading["kappa"] is None else f", quadratic kappa {round(grading['kappa'], 2) + 0.0:.2f}"
    return [
        *table,
        "",
        f"Of {grading['images']} test images of {grading['patients']} patients, {_percent(grading['accuracy'])} % got "
        f"the right grade{kappa}." + _escaped(_support_words(grading)),
    ]


def _support_words(grading: Mapping[str, Any]) -> str:
    """Each grade's AUC with its patients, and which grades are too few for the mean; older cards do not say."""
    support = grading.get("support")
    if support is None:
        return ""
    listed = ", ".join(
        f"{in_words(one['grade'])} {_number(one['value'])} ({counted(one['patients'], 'patient', 'patients')}"
        f"{'' if one['supported'] else ', too few'})"
        for one in support["grades"]
    )
    mean = (
        f"The mean over the grades with {support['least']} patients or more is {support['auc']:.2f}."
        if support["auc"] is not None
        else f"No grade has {support['least']} patients with it and without it, so there is no mean to rely on."
    )
    return f" AUC of each grade against all others: {listed}. {mean}"


def _images(card: Mapping[str, Any]) -> str:
    counts = card["images"]
    kind = "drawn images (phantoms)" if card["synthetic"] else "images"
    alone = card["settings"]["exchange"]["personal"] == "everything"
    if "sums" in card:
        alone = card["sums"]["answer"] == "own"
    others = "" if alone else ", beside those of the other sites"
    return (
        f"It learned from {counts['train']} {kind} of this site{others}; {counts['val']} set the threshold and "
        f"{counts['test']} tested it."
    )


def _pretrained(card: Mapping[str, Any]) -> list[str]:
    told = pretrained_words(card.get("encoder", {}))  # older cards do not say
    return [_escaped(told), ""] if told else []


def _head(card: Mapping[str, Any]) -> str:
    """Which head from sums answers, and why; nothing of a model that was trained."""
    if "sums" not in card:
        return ""
    answer, losses = card["sums"]["answer"], card["sums"]["validation_nll"]
    asked = card["settings"]["phases"][-1]["sums"]["answer"]
    why = "which the job asks for" if asked == answer else "which answered the validation images best"
    listed = ", ".join(f"{HEADS[name]} {losses[name]:.3f}" for name in HEADS)
    return f" It answers by {HEADS[answer]}, {why} (negative log likelihood: {listed})."


def _bullets(sentences: list[str]) -> list[str]:
    return [f"- {sentence}" for sentence in sentences if sentence]


def _percent(share: float) -> str:
    """Whole per cent; one place near the ends, where it matters most."""
    value = 100 * share
    return f"{value:.1f}" if 0 < value < 10 or 90 < value < 100 else f"{value:.0f}"


def _escaped(text: str) -> str:
    """Names are the site's own words and must not turn into Markdown."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", text)
