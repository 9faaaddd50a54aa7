"""The JSON record of a site's report: everything that its page shows, from the answers on the test split."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedretina.data.eyes import named_eye
from fedretina.evaluation.curves import reliability, risk_coverage
from fedretina.evaluation.doubt import doubted
from fedretina.evaluation.figures import LEVEL, FigureInterval, GradeFigure, LabelledPredictions, split_figures
from fedretina.evaluation.referable import ReferralTask, referral_task, threatening_task
from fedretina.evaluation.subgroups import subgroups
from fedretina.evaluation.units import UNITS, DiseaseFigures, Owners, disease_by_unit, ungradable
from fedretina.evaluation.verdict import FEDERATED
from fedretina.exchange.min_count import place
from fedretina.report import REPORT_FORMAT
from fedretina.report.card_words import order_words, promise_words, refers_by_chance, set_sentences
from fedretina.report.text import rounded
from fedretina.settings.images import has_order
from fedretina.settings.objective import TAU
from fedretina.settings.scalars import DISEASES, MIN_COUNT, UNCERTAINTY_BINS
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.training import LEAST_PATIENTS
from fedretina.uncertainty.estimators import auc_scores, build_estimator
from fedretina.uncertainty.temperature import tempered

_MOST_POINTS = 200
_LEAVING = (
    "auc",
    "auc_supported",
    "accuracy",
    "kappa",
    "error_auroc",
    "brier",
    "referable_auc",
    "referable_sensitivity",
    "referable_specificity",
    "threatening_auc",
    "threatening_sensitivity",
    "threatening_specificity",
)
EACH = 8
LONGEST_SIDE = 224
_QUALITY = 82


class AnsweredSplit(NamedTuple):
    """The test split of a site and the model's answers, as its report needs them.

    Attributes:
        logits: [N, K], or [N, M, K] of M members, of the site's model; N at least 1.
        labels: int64 [N].
        patients: Patient of each image.
        files: Name of each image at the site.
        images: uint8 [N, 3, S, S], as the model saw them.
        silent: Whether the gate lets no answer of the image be shown [N]; None where no gate looked.
        columns: Optional columns of the manifest that the site has read, by name: what each image has there, "" where
            nothing is known.
    """

    logits: Tensor
    labels: Tensor
    patients: Sequence[str]
    files: Sequence[str]
    images: Tensor
    silent: NDArray[np.bool_] | None = None
    columns: Mapping[str, Sequence[str]] = MappingProxyType({})

    @property
    def owners(self) -> Owners:
        """Whose images these are; the eye as the manifest says, else as the file's name does."""
        return Owners(self.patients, self.columns.get("eye") or [named_eye(file) for file in self.files])

    @property
    def oedema(self) -> list[bool | None]:
        """Whether each image shows macular oedema; empty where the manifest does not say."""
        return [{"yes": True, "no": False}.get(word) for word in self.columns.get("macular_oedema", ())]


class SiteReportInputs(NamedTuple):
    """What a site's report is made of.

    Attributes:
        site: Name of the site.
        run: Name of the run.
        synthetic: Whether the images are phantoms.
        scheme: The site's grades.
        method: Title of the row.
        chosen: Name of the step whose model this is.
        estimator: Name of an estimator.
        test: The answers on the test split.
        history: The rounds in order; see `rounds_of`.
        card: The model's card; its verdict, referral threshold, triage and temperature are shown where they are there.
        partition: By kind: "tensors", "values" and "travels".
        settings: The run's agreed settings; `evaluation.auc_input` and `objective.tau` are read.
        versions: Of the programs.
        ledger: Lines of the ledger so far.
        bad_files: Images that could not be read.
        images: Images per split.
        seed: Of the run.
        draws: Draws of the bootstrap.
        least: Patients that a grade needs to count in the mean of grades with support.
    """

    site: str
    run: str
    synthetic: bool
    scheme: GradingScheme
    method: str
    chosen: str
    estimator: str
    test: AnsweredSplit
    history: Sequence[Mapping[str, Any]]
    card: Mapping[str, Any]
    partition: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    ledger: Sequence[Mapping[str, Any]]
    bad_files: int
    images: Mapping[str, int]
    seed: int
    draws: int = 1000
    least: int = LEAST_PATIENTS


def site_report(inputs: SiteReportInputs) -> dict[str, Any]:
    """Compute the record of a site's report.

    It names files and holds images of patients: it stays at the site. What may leave is `leaving_scalars`.
    Probabilities, Brier score and ECE are the model's own; pictures and the second reliability diagram show them after
    the card's temperature, as the work list does.

    Raises:
        TrainingError: Outputs are not finite, or do not fit the labels.
    """
    test = inputs.test
    answer = build_estimator(inputs.estimator).predict(test.logits)
    labels = np.asarray(test.labels.cpu().numpy(), dtype=np.int64)
    found = split_figures(
        test.logits,
        labels,
        test.patients,
        inputs.scheme,
        estimator=build_estimator(inputs.estimator),
        auc_input=inputs.settings["evaluation"]["auc_input"],
        tau=float(inputs.settings["objective"].get("tau", TAU)),
        seed=inputs.seed,
        draws=inputs.draws,
        least=inputs.least,
        oedema=test.oedema,
    )
    said = LabelledPredictions(*answer[:2], labels, test.patients)
    predicted = np.argmax(answer.probabilities, axis=1)
    wrong = np.not_equal(predicted, labels)
    temperature = (inputs.card.get("temperature") or {}).get("value")
    seen = answer.probabilities if temperature is None else tempered(answer.probabilities, float(temperature))
    # What the threshold stands on; the figures above are the estimator's u, by which runs are compared.
    chosen = inputs.card.get("doubt") or {}
    used, order = chosen.get("used", "estimator"), chosen.get("order")
    doubt = doubted(said, used).uncertainty
    curve = risk_coverage(doubt, wrong)
    grades = inputs.scheme.num_classes
    return {
        "format": REPORT_FORMAT,
        "kind": "site",
        "site": inputs.site,
        "run": inputs.run,
        "synthetic": inputs.synthetic,
        "method": inputs.method,
        "row": inputs.settings.get("row"),
        "model": inputs.card.get("model", FEDERATED),
        "verdict": inputs.card.get("verdict"),
        "chosen": inputs.chosen,
        "estimator": inputs.estimator,
        "doubt": {"used": used, "order": order and {name: rounded(value) for name, value in order.items()}},
        "ordered": has_order(inputs.settings),
        "scheme": inputs.scheme.model_dump(mode="json"),
        "images": dict(inputs.images),
        "bad_files": inputs.bad_files,
        "test": {
            "images": int(labels.size),
            "patients": len(set(test.patients)),
            "right": int(np.sum(~wrong)),
            "by_grade": np.bincount(labels, minlength=grades).tolist(),
            "mean_confidence": rounded(np.mean(np.max(answer.probabilities, axis=1))),
        },
        "bootstrap": {"draws": inputs.draws, "level": LEVEL, "seed": inputs.seed},
        "figures": {name: _figure(figure) for name, figure in found.figures.items()},
        "auc_classes": found.auc_classes,
        "support": {
            "least": inputs.least,
            "grades": [_grade(one, inputs.scheme) for one in found.grades],
        },
        "confusion": np.bincount(labels * grades + predicted, minlength=grades**2).reshape(grades, grades).tolist(),
        "reliability": _reliability(answer.probabilities, wrong),
        "reliability_tempered": None
        if temperature is None or round(temperature, 2) == 1
        else _reliability(seen, wrong),
        "temperature": temperature,
        "uncertainty": _uncertainty_bins(doubt, wrong),
        "risk_coverage": _thinned(curve.coverage, curve.risk),
        "referable": None if found.disease is None else found.disease._asdict(),
        "units": _units(inputs, said),
        "subgroups": _subgroups(inputs, said),
        "referral": inputs.card.get("referral"),
        "by_chance": refers_by_chance(inputs.card),
        "card_limits": [
            *inputs.card.get("limits", []),
            *order_words(inputs.card),
            *promise_words(inputs.card),
            *set_sentences(inputs.card),
        ],
        "rounds": [dict(entry) for entry in inputs.history],
        "pictures": pictures(
            test.images,
            Shown(predicted, labels, np.max(seen, axis=1), doubt, test.files),
            inputs.scheme.grades,
        ),
        "provenance": {
            "settings": dict(inputs.settings),
            "versions": dict(inputs.versions),
            "partition": {kind: dict(sums) for kind, sums in inputs.partition.items()},
            "ledger": [dict(line) for line in inputs.ledger],
            "model_digest": inputs.card.get("model_digest"),
            "data_fingerprint": inputs.card.get("data_fingerprint"),
        },
    }


def _units(inputs: SiteReportInputs, said: LabelledPredictions) -> dict[str, Any]:
    """Diseases by image, eye and patient, and who gets no grade."""
    test, scheme = inputs.test, inputs.scheme
    owners = test.owners
    tasks: dict[str, ReferralTask | None] = {
        "referable": referral_task(said.probabilities, said.labels, scheme),
        "threatening": threatening_task(said.probabilities, said.labels, scheme, test.oedema),
    }
    diseases = {
        name: {unit: _disease(disease_by_unit(task, owners, unit, inputs.seed, inputs.draws)) for unit in UNITS}
        for name, task in tasks.items()
        if task is not None
    }
    silent = np.zeros(len(said.labels), dtype=np.bool_) if test.silent is None else test.silent
    nothing = ungradable(said, owners, scheme, silent)
    return {
        "eyes_unknown": int(np.sum(owners.of("eye") < 0)),
        "oedema_graded": sum(one is not None for one in test.oedema),
        "diseases": diseases,
        "ungradable": {
            name: None if part is None else {key: rounded(value) for key, value in part._asdict().items()}
            for name, part in nothing._asdict().items()
        },
    }


def _subgroups(inputs: SiteReportInputs, said: LabelledPredictions) -> dict[str, list[dict[str, Any]]]:
    """Figures by subgroup; empty where the site reads no column that tells any. They hold words of the manifest."""
    if not inputs.test.columns:
        return {}
    estimator, auc_input = build_estimator(inputs.estimator), inputs.settings["evaluation"]["auc_input"]
    tau = float(inputs.settings["objective"].get("tau", TAU))
    found = subgroups(
        said,
        auc_scores(inputs.test.logits, auc_input, tau, estimator),
        inputs.test.columns,
        inputs.scheme,
        seed=inputs.seed,
        draws=inputs.draws,
        least=inputs.least,
        oedema=inputs.test.oedema,
    )
    return {
        column: [
            {
                **{name: getattr(group, name) for name in ("value", "images", "patients")},
                "figures": {name: None if one is None else _figure(one) for name, one in group.figures.items()},
            }
            for group in groups
        ]
        for column, groups in found.items()
    }


def _disease(found: DiseaseFigures) -> dict[str, Any]:
    return {
        name: _figure(value) if isinstance(value, FigureInterval) else value for name, value in found._asdict().items()
    }


def rounds_of(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A site's history as its report shows it: a flat entry per round, None for what is not known.

    Args:
        history: As `History.steps` gives it.
    """
    rounds = []
    for entry in history:
        theta, validation = entry.get("theta") or {}, entry.get("validation") or {}
        rounds.append(
            {
                "step": entry["step"],
                "theta": theta.get("value"),
                "theta_reason": theta.get("reason"),
                "weight": entry.get("weight"),
                "loss": entry.get("loss"),
                "accuracy": entry.get("accuracy"),
                "val_auc": validation.get("auc"),
                "val_auc_supported": validation.get("auc_supported"),
                "val_accuracy": validation.get("accuracy"),
            }
        )
    return rounds


def leaving_scalars(report: Mapping[str, Any], min_count: int = MIN_COUNT) -> dict[str, float]:
    """The report's figures that a server's report shows besides those of `finalise`: bounds and figures of diseases.

    Args:
        report: As `site_report` gives it.
        min_count: Fewest patients with a disease, and without it, behind a figure for it. The bounds of a share tell
            how many stand behind it where all or none of them were found, and of one patient that is the answer.

    Returns:
        `test_<figure>_low` and `test_<figure>_high`, `test_referable_<figure>` and `test_threatening_<figure>`, without
        what is undefined; and `test_grades_supported`, over how many grades the mean with support goes.
    """
    diseases = report["units"]["diseases"]
    enough = {
        disease
        for disease in DISEASES
        if (who := diseases.get(disease, {}).get("patient")) is not None
        and min(who["ill_patients"], who["well_patients"]) >= min_count
    }
    found = {"test_grades_supported": float(sum(one["supported"] for one in report["support"]["grades"]))}
    for name in _LEAVING:
        disease = next((one for one in DISEASES if name.startswith(one)), None)
        figure = report["figures"].get(name, {}) if disease is None or disease in enough else {}
        if disease is not None and figure.get("value") is not None:
            found[f"test_{name}"] = float(figure["value"])
        if figure.get("low") is not None:
            found[f"test_{name}_low"] = float(figure["low"])
            found[f"test_{name}_high"] = float(figure["high"])
    return found


def _grade(found: GradeFigure, scheme: GradingScheme) -> dict[str, Any]:
    counted = found.counted
    who = {name: getattr(counted, name) for name in ("images", "patients", "others", "supported")}
    return {"grade": scheme.grades[counted.grade], **who, "auc": _figure(found.auc)}


def _figure(figure: FigureInterval) -> dict[str, Any]:
    return {**{name: rounded(value) for name, value in figure._asdict().items()}, "draws_used": figure.draws_used}


def _reliability(probabilities: NDArray[np.float64], wrong: NDArray[np.bool_]) -> dict[str, Any]:
    counted = reliability(np.max(probabilities, axis=1), ~wrong)
    return {
        "edges": [rounded(edge) for edge in counted.edges],
        "images": counted.images.tolist(),
        "right": counted.right.tolist(),
        "confidence": [rounded(total) for total in counted.confidence],
        "ece": rounded(counted.ece),
    }


def _uncertainty_bins(uncertainty: NDArray[np.float64], wrong: NDArray[np.bool_]) -> dict[str, Any]:
    at = place(uncertainty, UNCERTAINTY_BINS)
    return {
        "edges": [rounded(edge) for edge in np.linspace(0, 1, UNCERTAINTY_BINS + 1)],
        "images": np.bincount(at, minlength=UNCERTAINTY_BINS).tolist(),
        "wrong": np.bincount(at[wrong], minlength=UNCERTAINTY_BINS).tolist(),
    }


def _thinned(coverage: NDArray[np.float64], risk: NDArray[np.float64]) -> dict[str, list[float | None]]:
    kept = np.unique(np.linspace(0, coverage.size - 1, min(coverage.size, _MOST_POINTS)).round().astype(int))
    return {"coverage": [rounded(value) for value in coverage[kept]], "risk": [rounded(value) for value in risk[kept]]}


class Shown(NamedTuple):
    """What stands under an image.

    Attributes:
        answer: Class answered [N].
        labels: True class [N].
        probability: Probability of the answered class [N].
        uncertainty: u [N].
        files: Name of each image at the site.
    """

    answer: NDArray[np.intp]
    labels: NDArray[np.int64]
    probability: NDArray[np.float64]
    uncertainty: NDArray[np.float64]
    files: Sequence[str]


def pictures(images: Tensor, shown: Shown, grades: Sequence[str], each: int = EACH) -> dict[str, list[dict[str, Any]]]:
    """The surest right, the surest wrong and the most doubtful images of a split.

    Of equal u the file that comes first by name is taken, so the choice depends on nothing else.

    Args:
        images: uint8 [N, 3, S, S], as the model saw them.
        shown: What stands under each.
        grades: Names of the classes.
        each: How many of a kind.

    Returns:
        Lists by kind; an image is a data URI, JPEG, at most 224 pixels wide. They show patients: nothing of this
        leaves the site.
    """
    right = shown.answer == shown.labels
    order = np.lexsort((np.asarray(shown.files, dtype=np.str_), shown.uncertainty))
    doubtful = np.lexsort((np.asarray(shown.files, dtype=np.str_), -shown.uncertainty))
    chosen = {
        "surest_right": order[right[order]],
        "surest_wrong": order[~right[order]],
        "most_doubtful": doubtful,
    }
    found: dict[str, list[dict[str, Any]]] = {}
    uris: dict[int, str] = {}
    for kind, places in chosen.items():
        found[kind] = []
        for at in places[:each].tolist():
            if at not in uris:
                uris[at] = data_uri(images[at])
            found[kind].append(
                {
                    "file": shown.files[at],
                    "truth": grades[int(shown.labels[at])],
                    "answer": grades[int(shown.answer[at])],
                    "right": bool(right[at]),
                    "probability": round(float(shown.probability[at]), 4),
                    "uncertainty": round(float(shown.uncertainty[at]), 4),
                    "image": uris[at],
                }
            )
    return found


def data_uri(image: Tensor) -> str:
    """One uint8 image [3, S, S] as a JPEG in a data URI, made smaller where it is larger than 224 pixels."""
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).cpu().numpy()), mode="RGB")
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, format="JPEG", quality=_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
