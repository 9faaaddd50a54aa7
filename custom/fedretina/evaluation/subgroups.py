"""The same figures by subgroup of patients: at the site with intervals, at the server from sums that sites let go.

A mean hides those for whom a model does not work: another camera, the old, a first visit. But a subgroup is small, and
a figure of a few patients says nothing of the next ones; so a figure stands only where enough patients are behind it,
and "too few to say" where they are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.evaluation.bootstrap import ResampledFigures, Share, exact_interval, patient_bootstrap
from fedretina.evaluation.figures import LEVEL, FigureInterval, LabelledPredictions, with_interval
from fedretina.evaluation.metrics import accuracy
from fedretina.evaluation.referable import ReferralTask, found_by, referral_task, threatening_task
from fedretina.evaluation.support import people, supported_auc
from fedretina.exchange.min_count import follows
from fedretina.settings.columns import COLUMNS, COUNTED, PARTS, SUBGROUPS, sum_name
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.training import LEAST_PATIENTS

_LEAST_SITES = 2


class Subgroup(NamedTuple):
    """The test images of one value of a column.

    Attributes:
        value: The value; "" for images of which it is not known.
        images: Images, 1 or more.
        patients: Their patients.
        figures: By name; None of one with too few patients behind it to say.
    """

    value: str
    images: int
    patients: int
    figures: Mapping[str, FigureInterval | None]


def subgroups(
    answers: LabelledPredictions,
    scores: NDArray[np.float64],
    columns: Mapping[str, Sequence[str]],
    scheme: GradingScheme,
    *,
    seed: int,
    draws: int,
    least: int = LEAST_PATIENTS,
    oedema: Sequence[bool | None] = (),
) -> dict[str, list[Subgroup]]:
    """Figures of each subgroup of each column, with intervals over its patients.

    Args:
        answers: Answers and truth of the split.
        scores: What the AUC over grades ranks [N, K].
        columns: By name of a column, what each image has there [N].
        scheme: The site's grades.
        seed: Of the draws of patients.
        draws: Their number.
        least: Fewest patients behind a figure: of an AUC for a disease, with it and without it.
        oedema: Whether each image shows macular oedema; see `threatening_task`.

    Returns:
        By column, its subgroups: the values in their own order, or that of the alphabet, and the unknown ones last.
    """
    found: dict[str, list[Subgroup]] = {}
    for column in SUBGROUPS:
        if column not in columns:
            continue
        cells = np.asarray(columns[column], dtype=np.str_)
        values = COLUMNS[column].values or tuple(sorted({*cells.tolist()} - {""}))
        found[column] = [
            _subgroup(value, np.flatnonzero(cells == value), answers, scores, scheme, seed, draws, least, oedema)
            for value in (*values, "")
            if np.any(cells == value)
        ]
    return found


def _subgroup(
    value: str,
    rows: NDArray[np.intp],
    answers: LabelledPredictions,
    scores: NDArray[np.float64],
    scheme: GradingScheme,
    seed: int,
    draws: int,
    least: int,
    oedema: Sequence[bool | None],
) -> Subgroup:
    probabilities, labels = answers.probabilities[rows], answers.labels[rows]
    patients = [answers.patients[at] for at in rows]
    who = np.asarray(patients, dtype=np.str_)
    support = supported_auc(scores[rows], labels, patients, least)
    seen = [oedema[at] for at in rows] if len(oedema) else ()
    tasks = {
        "referable": referral_task(probabilities, labels, scheme),
        "threatening": threatening_task(probabilities, labels, scheme, seen),
    }
    values: dict[str, float | None] = {"accuracy": accuracy(probabilities.argmax(1), labels)}
    behind = {"accuracy": len(set(patients)), "auc_supported": 0 if support.value is None else len(set(patients))}
    values["auc_supported"] = support.value
    for name, task in tasks.items():
        if task is not None:
            ill, well = _behind(task, who)
            values |= {f"{name}_{figure}": one for figure, one in found_by(task)._asdict().items()}
            behind |= {f"{name}_auc": min(ill, well), f"{name}_sensitivity": ill, f"{name}_specificity": well}
    told = [name for name, value in values.items() if value is not None and behind[name] >= least]
    resampled = ResampledFigures(
        probabilities,
        labels,
        answers.uncertainty[rows],
        scores[rows],
        scores[rows],
        tasks["referable"],
        only=told,
        supported=support.counted,
        threatening=tasks["threatening"],
    )
    intervals = patient_bootstrap(resampled, patients, seed, draws, LEVEL) if told else {}
    figures = {
        name: with_interval(value, intervals.get(name), None if "auc" in name else behind[name])
        if name in told
        else None
        for name, value in values.items()
    }
    return Subgroup(value, len(rows), len(set(patients)), figures)


def _behind(task: ReferralTask, who: NDArray[np.str_]) -> tuple[int, int]:
    """Patients with a disease, and those with an image without it."""
    kept = who[task.kept]
    return people(kept, task.diseased), people(kept, ~task.diseased)


def subgroup_sums(
    answers: LabelledPredictions, columns: Mapping[str, Sequence[str]], scheme: GradingScheme, min_count: int
) -> dict[str, float]:
    """Count the patients of each subgroup, as they may leave where the site's policy lets its column go.

    A patient of a subgroup has images of that value: ill with a diseased one among them, found with one among them
    that the answered grade refers; without a diseased one and without one that no person could grade, well, and cleared
    where no answer refers. A sum stands only where `min_count` patients or more are behind it, and none of those
    withheld follows from the others of its column: at least two are withheld then, of as many patients together.

    Args:
        answers: Answers and truth of the split.
        columns: By name of a column, what each image has there [N].
        scheme: Names the referable grades; without them there are no sums.
        min_count: Fewest patients behind a sum, 1 or more.

    Returns:
        Scalars by name, all in `settings.columns.GROUP_SUMS`.
    """
    task = referral_task(answers.probabilities, answers.labels, scheme)
    if task is None:
        return {}
    size = len(answers.labels)
    ill, open_, referred = np.zeros(size, dtype=np.bool_), ~task.kept, task.called
    ill[task.kept] = task.diseased
    who = np.asarray(answers.patients, dtype=np.str_)
    scalars: dict[str, float] = {}
    for column in COUNTED:
        if column not in columns:
            continue
        cells = np.asarray(columns[column], dtype=np.str_)
        counted = {
            value: _counted(who[cells == value], ill[cells == value], referred[cells == value], open_[cells == value])
            for value in (*COLUMNS[column].values, "")
        }
        for among, hit in (("ill", "found"), ("well", "cleared")):
            for value in _sent({value: one[among] for value, one in counted.items()}, min_count):
                scalars[sum_name(column, value, among)] = float(counted[value][among])
                scalars[sum_name(column, value, hit)] = float(counted[value][hit])
    return scalars


def _counted(
    who: NDArray[np.str_], ill: NDArray[np.bool_], referred: NDArray[np.bool_], open_: NDArray[np.bool_]
) -> dict[str, int]:
    sick, seen, unsure = set(who[ill].tolist()), set(who[referred].tolist()), set(who[open_].tolist())
    well = set(who.tolist()) - sick - unsure
    return dict(zip(PARTS, map(len, (sick, sick & seen, well, well - seen)), strict=True))


def _sent(patients: Mapping[str, int], min_count: int) -> list[str]:
    """Values whose number of patients may be told; "", of whom nothing is known, is none of them."""
    sent = sorted((value for value, many in patients.items() if value and many >= min_count), key=patients.__getitem__)
    unknown = patients.get("", 0)
    beside = [unknown] if 0 < unknown < min_count else []  # more of them may be told
    while sent and follows(
        [*beside, *(patients[v] for v in patients if v and v not in sent and patients[v])], min_count
    ):
        sent.pop(0)  # the smallest goes first
    return sent


class PooledSubgroup(NamedTuple):
    """A subgroup over all sites that let its sums go.

    Attributes:
        column: The column.
        value: The value.
        sites: Sites whose sums are in it.
        sensitivity: Found of the patients with referable disease, with the exact interval; None where none were told.
        specificity: Cleared of those without it; None likewise.
    """

    column: str
    value: str
    sites: int
    sensitivity: Share | None
    specificity: Share | None


def pooled_subgroups(sites: Mapping[str, Mapping[str, float]]) -> list[PooledSubgroup]:
    """Add up the sums of all sites; what fewer than two told is not there, nor are sums that contradict themselves.

    One site's subgroup would be shown as that site's. Sites call referable what their own criteria do, so a pooled
    figure holds the differences between the sites, too.

    Args:
        sites: What each sent.
    """
    found = []
    for column in COUNTED:
        for value in COLUMNS[column].values:
            names = {part: sum_name(column, value, part) for part in PARTS}
            shares: dict[str, Share | None] = {}
            heard: set[str] = set()
            for among, hit in (("ill", "found"), ("well", "cleared")):
                told = {site: (sums.get(names[hit]), sums.get(names[among])) for site, sums in sites.items()}
                sound = {
                    site: (round(k), round(n))
                    for site, (k, n) in told.items()
                    if k is not None and n is not None and 0 <= k <= n
                }
                if len(sound) < _LEAST_SITES:
                    shares[among] = None
                    continue
                heard |= set(sound)
                shares[among] = exact_interval(sum(k for k, _ in sound.values()), sum(n for _, n in sound.values()))
            if heard:
                found.append(PooledSubgroup(column, value, len(heard), shares["ill"], shares["well"]))
    return found
