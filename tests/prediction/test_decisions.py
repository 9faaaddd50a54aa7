"""What doctors decided, read back and compared: counts by hand, and files that cannot be."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.metrics import cohen_kappa_score

from fedretina.cli import main
from fedretina.errors import DataError, StateError
from fedretina.prediction.decisions import (
    LIST_FILE,
    between_readers,
    joined,
    list_record,
    read_decisions,
    read_list,
    reading,
    reading_record,
)
from fedretina.prediction.eyes import Owner
from fedretina.prediction.predictor import ImageRow
from fedretina.prediction.worklist import work_list, write_images
from fedretina.report.render import render_reading
from fedretina.report.summary import reading_summary
from fedretina.settings.scheme import preset
from fedretina.storage import write_json
from fedretina.uncertainty.referral import UNREADABLE, refer

SCHEME = preset("icdr5_ungradable")
HEADER = ["list", "file", "patient", "eye", "answer", "decision", "grade", "note", "reader", "hidden", "decided"]
ANSWERS = [
    ("a1", "a", 0),
    ("a2", "a", 0),
    ("b1", "b", 1),
    ("c1", "c", 3),
    ("d1", "d", 2),
    ("e1", "e", None),
    ("=f", "f", 0),
]
SIDES = [("p1", 0), ("p2", 3), ("q1", 0), ("q2", 3)]
CARD = {
    "notice": "a notice.",
    "site": "site-1",
    "run": "a-run",
    "synthetic": True,
    "model_digest": "d" * 64,
    "scheme": SCHEME.model_dump(mode="json"),
    "referral": {"threshold": 0.5},
    "settings": {},
}


@pytest.fixture
def folder(tmp_path):
    rows = [
        ImageRow(file, None, None, None, UNREADABLE, "damaged.")
        if grade is None
        else ImageRow(file, grade, np.eye(6)[grade], 0.2, refer(grade, 0.2, 0.5, SCHEME), "")
        for file, _, grade in ANSWERS
    ]
    patients = work_list(rows, [Owner(patient, "") for _, patient, _ in ANSWERS], SCHEME)
    write_images(tmp_path / "images.csv", patients, SCHEME)
    write_json(tmp_path / LIST_FILE, list_record(tmp_path / "images.csv", CARD))
    return tmp_path


def saved(folder, name, *rows, reader="Dr. X", of=None, hidden="no"):
    of = of or read_list(folder).record["list"]
    with open(folder / name, "w", newline="", encoding="utf-8-sig") as handle:
        writer = csv.writer(handle)
        writer.writerow(HEADER)
        for file, decision, grade, *note in rows:
            writer.writerow([of, file, "", "", "", decision, grade, "".join(note), reader, hidden, "2026-01-01"])
    return folder / name


DECIDED = [
    ("a1", "agree", "no_dr"),
    ("a2", "other", "severe", "'=a note"),  # the list did not refer patient a
    ("b1", "other", "no_dr"),
    ("c1", "agree", "severe"),
    ("d1", "ungradable", "ungradable"),
    ("e1", "other", "mild"),  # it had no answer, and is referred
    ("'=f", "agree", "no_dr"),
]


def test_agreement_kappa_and_what_was_missed(folder):
    of = read_list(folder)
    found = reading("Dr. X", read_decisions(saved(folder, "x.csv", *DECIDED), of)["Dr. X"], of)
    assert (found.decided, found.hidden, found.agreed, found.ungradable) == (7, 0, (3, 5), 1)
    expected = cohen_kappa_score([0, 0, 1, 3, 0], [0, 3, 0, 3, 0], labels=range(5), weights="quadratic")
    assert found.kappa == pytest.approx(expected)
    assert found.patients_agreed[:2] == (2, 4)  # c and f of a, b, c, f
    assert found.missed[:2] == (1, 2)  # a of a and c
    assert found.needless[:2] == (1, 3)  # e of b, e, f; d is not known to be well
    assert [one.answer.file for one in found.differences] == ["a2", "b1", "d1", "e1"]
    assert [one.missed for one in found.differences] == [True, False, False, False]
    assert [one.apart for one in found.differences] == [3, 1, None, None]
    assert found.differences[0].decision.note == "=a note"


def test_classes_without_an_order_have_a_kappa_without_weights_and_counts_of_what_was_taken_for_what(folder):
    card = CARD | {"settings": {"images": {"modality": "oct"}}}
    write_json(folder / LIST_FILE, list_record(folder / "images.csv", card))
    of = read_list(folder)
    found = joined([saved(folder, "x.csv", *DECIDED), saved(folder, "y.csv", *DECIDED, reader="Dr. Y")], of)
    one = reading("Dr. X", found["Dr. X"], of)
    assert one.kappa == pytest.approx(cohen_kappa_score([0, 0, 1, 3, 0], [0, 3, 0, 3, 0]))
    assert one.confusions == (("mild", "no_dr", 1), ("no_dr", "severe", 1))
    assert [each.apart for each in one.differences] == [None] * 4
    record = reading_record(found, of)
    page = render_reading(record)
    assert "quadratic" not in page
    assert page.index(">kappa</div>") < page.index(f"the same grade; kappa {one.kappa:.2f}.")
    assert page.index("What was taken for what") < page.index("Where they differ")
    with_order = render_reading(record | {"ordered": True})
    assert "quadratic kappa" in with_order
    assert "What was taken for what" not in with_order


def test_a_list_of_an_earlier_version_has_an_order(folder):
    record = list_record(folder / "images.csv", CARD)
    del record["ordered"]
    write_json(folder / LIST_FILE, record)
    assert read_list(folder).ordered


def test_a_patient_who_was_read_in_part_was_referred_for_nothing_that_anybody_knows(tmp_path):
    rows = [ImageRow(file, grade, np.eye(6)[grade], 0.2, refer(grade, 0.2, 0.5, SCHEME), "") for file, grade in SIDES]
    patients = work_list(rows, [Owner(file[0], "") for file, _ in SIDES], SCHEME)
    write_images(tmp_path / "images.csv", patients, SCHEME)
    write_json(tmp_path / LIST_FILE, list_record(tmp_path / "images.csv", CARD))
    of = read_list(tmp_path)
    healthy = [("p1", "agree", "no_dr"), ("q1", "agree", "no_dr")]  # the eyes that were referred are still open
    part = reading("Dr. X", read_decisions(saved(tmp_path, "x.csv", *healthy), of)["Dr. X"], of)
    assert (part.decided, part.needless) == (2, None)
    whole = [*healthy, ("p2", "other", "no_dr")]
    assert reading("Dr. X", read_decisions(saved(tmp_path, "y.csv", *whole), of)["Dr. X"], of).needless[:2] == (1, 1)


def test_without_referable_grades_nothing_is_said_of_what_the_doctor_found(folder):
    write_json(folder / LIST_FILE, list_record(folder / "images.csv", CARD | {"scheme": {"grades": SCHEME.grades}}))
    of = read_list(folder)
    record = reading_record(joined([saved(folder, "x.csv", ("c1", "agree", "severe"))], of), of)
    words = " ".join(reading_summary(record["readers"][0], record["referable"], True))
    assert "found no patient" not in words
    assert "names no referable grades, so what was missed cannot be told." in words
    assert "names no referable grades" in render_reading(record)
    record["referable"] = ["severe"]
    words = " ".join(reading_summary(record["readers"][0], ["severe"], True))
    assert "found no patient with a referable grade" in words


def test_two_readers_are_compared_with_each_other_and_the_later_file_counts(folder):
    of = read_list(folder)
    first = saved(folder, "x.csv", *DECIDED)
    second = saved(folder, "y.csv", ("a1", "other", "mild"), ("a2", "other", "severe"), reader="Dr. Y", hidden="yes")
    later = saved(folder, "z.csv", ("a1", "other", "mild"))
    found = joined([first, second, later], of)
    assert {one.file: one.grade for one in found["Dr. X"]}["a1"] == "mild"
    assert len(found["Dr. X"]) == 7
    (pair,) = between_readers(found, of)
    assert (pair.readers, pair.agreed, pair.kappa) == (("Dr. X", "Dr. Y"), (2, 2), 1.0)
    record = reading_record(found, of)
    assert [one["hidden"] for one in record["readers"]] == [0, 2]
    assert record["read"] == 7


def test_a_decision_that_was_taken_back_counts_for_nothing(folder):
    of = read_list(folder)
    path = saved(folder, "x.csv", ("a1", "agree", "no_dr"), ("b1", "agree", "mild"), ("a1", "", "", "only a note"))
    assert [one.file for one in read_decisions(path, of)["Dr. X"]] == ["b1"]


@pytest.mark.parametrize(
    ("rows", "of", "said"),
    [
        ([("a1", "agree", "")], "another", "row 2 is a decision on another work list"),
        ([("zz", "agree", "")], None, "the list has no photograph 'zz'"),
        ([("a1", "maybe", "")], None, "the decision 'maybe' is none of agree, other, ungradable"),
        ([("a1", "other", "awful")], None, "the grade 'awful' is none of the site's"),
        ([("e1", "agree", "")], None, "the grade '' is none of the site's"),
        ([], None, "the files hold no decision"),
    ],
)
def test_what_cannot_be_a_decision_is_refused(folder, rows, of, said):
    with pytest.raises(DataError, match=said.replace("(", r"\(")):
        joined([saved(folder, "x.csv", *rows, of=of)], read_list(folder))


def test_a_list_that_was_changed_is_refused(folder):
    with open(folder / "images.csv", "a") as handle:
        handle.write("x\n")
    with pytest.raises(StateError, match="was changed after the list was made"):
        read_list(folder)


def test_the_page_names_the_missed_first_and_escapes_notes(folder):
    rows = [*DECIDED[:-1], ("'=f", "other", "mild", "<script>alert(1)</script>")]
    of = read_list(folder)
    page = render_reading(reading_record(joined([saved(folder, "x.csv", *rows)], of), of))
    assert page.index("The list missed 1 of 2 patients") < page.index("gave 2 of 5 photographs the same grade")
    assert page.index("missed by the list") < page.index("quadratic kappa</div>")
    assert "<script" not in page
    assert "not a medical device" in page
    assert "drawn by a program" in page
    assert "stays at this hospital" in page


def test_the_command_writes_page_and_record_and_says_the_sentences(folder):
    def call(*words):
        return CliRunner().invoke(main, ["report", *(str(word) for word in words)])

    path = saved(folder, "x.csv", *DECIDED)
    done = call("--decisions", path, "--list", folder)
    assert done.exit_code == 0, done.output
    assert "Dr. X: The list missed 1 of 2 patients" in done.output
    assert (folder / "reading.html").exists()
    assert (folder / "reading.json").exists()
    assert "belong together" in call("--decisions", path).output
    assert "not about a run" in call("a-run", "--decisions", path, "--list", folder).output
    other = saved(folder, "o.csv", *DECIDED, of="other")
    refused = call("--decisions", other, "--list", folder)
    assert (refused.exit_code, "another work list" in refused.output) == (2, True)
