"""What doctors decided on a work list, read back from the files that its page saves, and held against the answers."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from fedretina.data.manifest import csv_rows
from fedretina.errors import DataError, StateError
from fedretina.evaluation.bootstrap import Share, exact_interval
from fedretina.evaluation.metrics import plain_kappa, quadratic_kappa
from fedretina.settings.images import has_order
from fedretina.settings.scheme import GradingScheme
from fedretina.storage import read_json

LIST_FILE = "list.json"
FORMAT = 1
Verdict = Literal["agree", "other", "ungradable"]
_DECIDED = ("list", "file", "patient", "eye", "answer", "decision", "grade", "note", "reader", "hidden")
_ANSWERED = ("file", "patient", "eye", "refer", "grade", "u")


class Answer(NamedTuple):
    """A photograph of a work list and what the model said; `grade` is "" where there is no answer."""

    file: str
    patient: str
    eye: str
    refer: bool
    grade: str
    u: str


class WorkList(NamedTuple):
    """A work list as it was written.

    Attributes:
        record: What `list.json` holds.
        scheme: The site's grades.
        answers: By the name of the file.
        ordered: Whether one grade is worse than another, see `ImageSettings.ordered`.
    """

    record: Mapping[str, Any]
    scheme: GradingScheme
    answers: Mapping[str, Answer]
    ordered: bool


class Decision(NamedTuple):
    """What a doctor decided on a photograph.

    Attributes:
        file: Name of the photograph, as in the list.
        verdict: What was chosen.
        grade: The grade that the photograph has by it; "" where it is ungradable and the site has no such grade.
        note: In the doctor's words.
        hidden: Whether the answer was hidden until then.
    """

    file: str
    verdict: Verdict
    grade: str
    note: str
    hidden: bool


class Difference(NamedTuple):
    """A photograph on which a doctor differs from the model.

    Attributes:
        answer: What the model said.
        decision: What the doctor decided.
        missed: Whether the doctor calls it referable and the list did not refer the patient.
        apart: How many grades lie between the two; None where one of them has no place in their order, or there is
            no order.
    """

    answer: Answer
    decision: Decision
    missed: bool
    apart: int | None


class Confusion(NamedTuple):
    """How many photographs the model gave one grade and a doctor another."""

    answered: str
    decided: str
    photographs: int


class Reading(NamedTuple):
    """A doctor's decisions against the answers.

    Attributes:
        reader: The name that was typed; "" where there was none.
        decided: Photographs with a decision.
        hidden: How many of them were decided before the answer was shown.
        agreed: Photographs with the same grade, of those to which both gave one that can be graded.
        kappa: Kappa over these, quadratic where the grades have an order, else with every mistake alike; None where
            it is undefined.
        patients_agreed: Patients all of whose such photographs have the same grade, with an exact interval.
        ungradable: Photographs that the doctor calls ungradable, though they had a grade.
        missed: Patients with a referable grade by the doctor whom the list did not refer, of all such patients; None
            where the scheme names no referable grades.
        needless: Patients that the list referred, of those all of whose photographs the doctor graded, none as
            referable. Of a patient who was read in part nobody knows.
        differences: Where the two differ, the gravest first.
        confusions: Grades that were taken for each other in photographs that both graded, the commonest first.
    """

    reader: str
    decided: int
    hidden: int
    agreed: tuple[int, int]
    kappa: float | None
    patients_agreed: Share | None
    ungradable: int
    missed: Share | None
    needless: Share | None
    differences: tuple[Difference, ...]
    confusions: tuple[Confusion, ...]


class Readers(NamedTuple):
    """Two doctors who decided on the same photographs: how far people agree is the measure for a model.

    Attributes:
        readers: Their names.
        agreed: Photographs with the same grade, of those that both graded.
        kappa: See `Reading.kappa`.
    """

    readers: tuple[str, str]
    agreed: tuple[int, int]
    kappa: float | None


def list_record(images: Path, card: Mapping[str, Any]) -> dict[str, Any]:
    """What is written beside a work list, so that decisions on it are known again.

    Args:
        images: The table of photographs, as it was written; its digest tells the list from others.
        card: Of the model that answered.
    """
    return {
        "format": FORMAT,
        "notice": card["notice"],
        "list": _digest(images),
        **{name: card[name] for name in ("site", "run", "synthetic", "model_digest", "scheme")},
        "threshold": card["referral"]["threshold"],
        "ordered": has_order(card["settings"]),
    }


def read_list(folder: Path) -> WorkList:
    """Read a work list that `fedretina predict` wrote.

    Raises:
        StateError: The folder holds none, or its tables were changed since.
    """
    record = read_json(folder / LIST_FILE)
    if record.get("format") != FORMAT or "list" not in record or "scheme" not in record:
        raise StateError(f"{folder / LIST_FILE} is no work list of this version: make the list again.")
    path = folder / "images.csv"
    if not path.exists() or _digest(path) != record["list"]:
        raise StateError(
            f"{path} is missing, or was changed after the list was made: restore it, or make the list again and have "
            "it read anew."
        )
    rows = [row for _, row in csv_rows(path, _ANSWERED)]
    answers = {
        row["file"]: Answer(row["file"], row["patient"], row["eye"], row["refer"] == "yes", row["grade"], row["u"])
        for row in rows
    }
    # Lists of earlier versions do not say whether there is an order.
    return WorkList(record, GradingScheme.model_validate(record["scheme"]), answers, record.get("ordered", True))


def read_decisions(path: Path, of: WorkList) -> dict[str, list[Decision]]:
    """Read decisions that the page of a work list saved.

    A photograph that stands twice for a reader counts as its last row says; one with a note alone has no decision.

    Returns:
        Decisions by reader.

    Raises:
        DataError: It is no such file, is on another list, or holds a row that cannot be.
    """
    found: dict[str, dict[str, Decision]] = {}
    try:
        rows = csv_rows(path, _DECIDED)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): mend its path or its rights.") from error
    for number, row in rows:
        where = f"{path}, row {number}"
        if row["list"] != of.record["list"]:
            raise DataError(f"{where} is a decision on another work list: name the folder of that one.")
        answer = of.answers.get(row["file"])
        if answer is None:
            raise DataError(f"{where}: the list has no photograph {row['file']!r}: save the decisions anew.")
        reader = found.setdefault(row["reader"], {})
        if not row["decision"]:
            reader.pop(answer.file, None)
            continue
        reader[answer.file] = _decision(row, answer, of.scheme, where)
    return {reader: list(decisions.values()) for reader, decisions in found.items() if decisions}


def _decision(row: Mapping[str, str], answer: Answer, scheme: GradingScheme, where: str) -> Decision:
    if row["decision"] not in get_args(Verdict):
        raise DataError(f"{where}: the decision {row['decision']!r} is none of {', '.join(get_args(Verdict))}.")
    verdict: Verdict = row["decision"]  # type: ignore[assignment]
    grade = {"agree": answer.grade, "ungradable": scheme.ungradable or "", "other": row["grade"]}[verdict]
    if verdict != "ungradable" and grade not in scheme.grades:
        raise DataError(f"{where}: the grade {grade!r} is none of the site's: {', '.join(scheme.grades)}.")
    return Decision(answer.file, verdict, grade, row["note"].removeprefix("'"), row["hidden"] == "yes")


def reading(reader: str, decisions: Sequence[Decision], of: WorkList) -> Reading:
    """Hold a reader's decisions against the answers.

    Photographs are counted for grades, patients for what was missed and for intervals: two eyes of a person are alike.
    """
    scheme = of.scheme
    places = {name: at for at, name in enumerate(scheme.grades) if name != scheme.ungradable}
    pairs = [(of.answers[one.file], one) for one in decisions]
    both = [(answer, one) for answer, one in pairs if answer.grade in places and one.grade in places]
    same = [answer.grade == one.grade for answer, one in both]
    referred = {answer.patient for answer in of.answers.values() if answer.refer}
    by_patient: dict[str, list[str]] = {}
    for answer, one in pairs:
        by_patient.setdefault(answer.patient, []).append(one.grade)
    sick = set(scheme.referable)
    ill = {patient for patient, grades in by_patient.items() if sick & set(grades)}
    decided = {one.file for one in decisions}
    in_part = {answer.patient for answer in of.answers.values() if answer.file not in decided}
    graded = {patient for patient, grades in by_patient.items() if all(grade in places for grade in grades)}
    well = graded - in_part - ill
    agreeing: dict[str, bool] = {}
    for (answer, _), alike in zip(both, same, strict=True):
        agreeing[answer.patient] = agreeing.get(answer.patient, True) and alike
    differences = [
        Difference(
            answer,
            one,
            missed=one.grade in sick and answer.patient not in referred,
            apart=abs(places[answer.grade] - places[one.grade])
            if of.ordered and answer.grade in places and one.grade in places
            else None,
        )
        for answer, one in pairs
        if answer.grade != one.grade
    ]
    return Reading(
        reader=reader,
        decided=len(pairs),
        hidden=sum(one.hidden for one in decisions),
        agreed=(sum(same), len(both)),
        kappa=_kappa([(places[answer.grade], places[one.grade]) for answer, one in both], of.ordered),
        patients_agreed=exact_interval(sum(agreeing.values()), len(agreeing)),
        ungradable=sum(one.verdict == "ungradable" and answer.grade in places for answer, one in pairs),
        missed=exact_interval(len(ill - referred), len(ill)) if sick else None,
        needless=exact_interval(len(well & referred), len(well)) if sick else None,
        differences=tuple(sorted(differences, key=_gravity)),
        confusions=_confusions((answer.grade, one.grade) for answer, one in both if answer.grade != one.grade),
    )


def between_readers(by_reader: Mapping[str, Sequence[Decision]], of: WorkList) -> list[Readers]:
    """How far each two readers agree on the photographs that both graded."""
    places = {name: at for at, name in enumerate(of.scheme.grades) if name != of.scheme.ungradable}
    found = []
    for first, second in combinations(sorted(by_reader), 2):
        graded = [{one.file: one.grade for one in by_reader[name] if one.grade in places} for name in (first, second)]
        files = sorted(graded[0].keys() & graded[1].keys())
        if files:
            pairs = [(places[graded[0][file]], places[graded[1][file]]) for file in files]
            same = sum(a == b for a, b in pairs)
            found.append(Readers((first, second), (same, len(pairs)), _kappa(pairs, of.ordered)))
    return found


def joined(files: Iterable[Path], of: WorkList) -> dict[str, list[Decision]]:
    """Decisions of several files by reader; of two on the same photograph by the same reader the later file's counts.

    Raises:
        DataError: As `read_decisions`; or none of them holds a decision.
    """
    found: dict[str, dict[str, Decision]] = {}
    for path in files:
        for reader, decisions in read_decisions(path, of).items():
            found.setdefault(reader, {}).update({one.file: one for one in decisions})
    if not found:
        raise DataError("the files hold no decision: decide on the page of the list, and save them there.")
    return {reader: list(decisions.values()) for reader, decisions in found.items()}


def _kappa(pairs: Sequence[tuple[int, int]], ordered: bool) -> float | None:
    kappa = quadratic_kappa if ordered else plain_kappa
    return kappa([a for a, _ in pairs], [b for _, b in pairs]) if pairs else None


def _confusions(pairs: Iterable[tuple[str, str]]) -> tuple[Confusion, ...]:
    counted = Counter(pairs).items()
    return tuple(Confusion(*pair, count) for pair, count in sorted(counted, key=lambda one: (-one[1], one[0])))


def _gravity(one: Difference) -> tuple[bool, float, str]:
    return not one.missed, -(-1 if one.apart is None else one.apart), one.answer.file


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def reading_record(by_reader: Mapping[str, Sequence[Decision]], of: WorkList) -> dict[str, Any]:
    """What the page of a reading is rendered from: plain values that JSON can hold; it names patients and stays."""
    every = {one.file for decisions in by_reader.values() for one in decisions}
    readings = [reading(name, decisions, of) for name, decisions in sorted(by_reader.items())]
    return {
        "format": FORMAT,
        "kind": "reading",
        **{name: of.record[name] for name in ("site", "run", "synthetic", "model_digest", "threshold", "list")},
        "referable": list(of.scheme.referable),
        "ordered": of.ordered,
        "photographs": len(of.answers),
        "patients": len({one.patient for one in of.answers.values()}),
        "read": len(every),
        "readers": [
            {
                **one._asdict(),
                **{name: _plain(getattr(one, name)) for name in ("patients_agreed", "missed", "needless")},
                "agreed": list(one.agreed),
                "confusions": [each._asdict() for each in one.confusions],
                "differences": [
                    {
                        **each.answer._asdict(),
                        "decided": each.decision.grade,
                        "note": each.decision.note,
                        "missed": each.missed,
                        "apart": each.apart,
                    }
                    for each in one.differences
                ],
            }
            for one in readings
        ],
        "between": [
            {"readers": list(one.readers), "agreed": list(one.agreed), "kappa": one.kappa}
            for one in between_readers(by_reader, of)
        ],
    }


def _plain(share: Share | None) -> dict[str, float] | None:
    return None if share is None else share._asdict()
