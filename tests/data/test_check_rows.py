import pytest

from fedretina.data.check.rows import Image, Row, check_counts, check_rows
from fedretina.data.check.rules import Findings
from fedretina.data.manifest import RawRow, read_manifest, write_manifest
from fedretina.errors import DataError
from fedretina.settings.scheme import GradingScheme, preset

GOOD = [("a.png", "0", "p1", "train"), ("d/b.png", "4", "p2", "val"), ("c.png", "mild", "p3", "test")]


def found(rows, scheme=None):
    findings = Findings()
    numbered = [Row(f"row {number}", *row) for number, row in enumerate(rows, 2)]
    images = check_rows(numbered, scheme or preset("icdr5"), findings)
    return images, {one.code: one for one in findings}


def test_clean_rows_have_no_fault():
    images, codes = found([*GOOD, ("e.png", "0", "p1", "train")])
    assert codes == {}
    assert images[1] == Image("row 3", "d/b.png", 4, "p2", "val")


@pytest.mark.parametrize(
    ("row", "code", "words"),
    [
        (("e.png", "0", "p9", "training"), "split_unknown", "row 5: 'e.png': split 'training'"),
        (("e.png", "7", "p9", "train"), "label_outside_scheme", "row 5: 'e.png': label '7'"),
        (("e.png", "", "p9", "val"), "label_outside_scheme", "row 5: 'e.png': label ''"),
        (("e.png", "0", "", "train"), "patient_empty", "row 5: 'e.png'"),
        (("e.png", "0", "p1", "val"), "patient_in_two_splits", "'p1': train (row 2), val (row 5)"),
        (("./d/b.png", "4", "p2", "val"), "file_listed_twice", "'d/b.png': row 3, row 5"),
        (("../e.png", "0", "p9", "train"), "file_name_refused", "row 5: '../e.png'"),
        (("C:\\e.png", "0", "p9", "train"), "file_name_refused", r"row 5: 'C:\\e.png'"),
        (("", "0", "p9", "train"), "file_name_refused", "row 5: ''"),
    ],
)
def test_a_fault_is_found_and_training_would_refuse_it(tmp_path, row, code, words):
    _, codes = found([*GOOD, row])
    assert codes[code].severity == "error"
    assert codes[code].where == (words,)
    write_manifest(tmp_path / "m.csv", [RawRow(*one) for one in [*GOOD, row]])
    with pytest.raises(DataError):
        read_manifest(tmp_path / "m.csv", preset("icdr5"))


def test_all_faults_are_found_at_once():
    images, codes = found(
        [
            *GOOD,
            ("e.png", "7", "p9", "training"),
            ("/f.png", "0", "", "train"),
            ("a.png", "9", "p1", "test"),
            ("g.png", "x", "p3", "test"),
        ]
    )
    assert set(codes) == {
        "label_outside_scheme",
        "split_unknown",
        "file_name_refused",
        "patient_empty",
        "file_listed_twice",
        "patient_in_two_splits",
    }
    assert codes["label_outside_scheme"].count == 3
    # Files are looked at whatever is wrong with their rows, each once.
    assert [(image.file, image.label, image.split) for image in images[3:]] == [
        ("e.png", None, None),
        ("g.png", None, "test"),
    ]


def test_patients_that_differ_in_spelling():
    images, codes = found([*GOOD, ("e.png", "0", "P 1", "test"), ("f.png", "0", "P3", "test")])
    assert codes["patient_spelled_twice"].where == ("'p1' in train, 'P 1' in test", "'p3' in test, 'P3' in test")
    assert codes["patient_spelled_twice"].severity == "warning"
    assert codes["patient_in_two_splits"].where == ("'P 1': train (row 2), test (row 5)",)
    assert len({image.patient for image in images}) == 3


def test_each_image_a_patient_is_told():
    _, codes = found(GOOD)
    assert set(codes) == {"patients_unknown"}
    assert found(GOOD[:1])[1] == {}


def image(label, split):
    return Image("", "", label, "p", split)


def counted(images, scheme):
    findings = Findings()
    counts = check_counts(images, scheme, findings)
    return counts, {one.code: one.where for one in findings}


def test_counts_and_what_is_wrong_with_them():
    scheme = GradingScheme(grades=("well", "ill"), referable=("ill",))
    images = [image(0, "train"), image(None, "val"), image(0, None)] + [image(1, "test")] * 4
    counts, codes = counted(images, scheme)
    assert counts == {"train": [1, 0], "val": [0, 0], "test": [0, 4]}
    assert codes == {
        "split_empty": ("val",),
        "one_grade_in_train": ("well",),
        "grade_missing": ("no 'ill' in train", "no 'well' in test"),
        "grade_rare_in_test": ("4 'ill' in test",),
    }


def test_enough_of_each_is_nothing_to_tell():
    scheme = GradingScheme(grades=("well", "ill"), referable=("ill",))
    images = [image(label, split) for label in (0, 1) for split in ("train", "val", "test") for _ in range(5)]
    assert counted(images, scheme)[1] == {}


def test_no_images_and_no_referable_grades():
    _, codes = counted([], GradingScheme(grades=("well", "ill")))
    assert codes == {"split_empty": ("train", "val", "test"), "referable_not_set": ("the grading scheme",)}


@pytest.mark.parametrize(("promised", "severity"), [(False, "note"), (True, "error")])
def test_a_promise_needs_referable_grades(promised, severity):
    findings = Findings()
    check_counts([], GradingScheme(grades=("well", "ill")), findings, promised)
    assert {one.code: one.severity for one in findings}["referable_not_set"] == severity
    findings = Findings()
    check_counts([], preset("icdr5"), findings, promised)
    assert "referable_not_set" not in {one.code for one in findings}


def test_a_row_of_train_may_have_no_label():
    images, codes = found([*GOOD, ("u.png", "", "p1", "train")])
    assert images[3] == Image("row 5", "u.png", None, "p1", "train", unlabelled=True)
    assert list(codes) == ["label_none"]
    assert codes["label_none"].severity == "note"


@pytest.mark.parametrize(("split", "missing"), [("train", ()), ("val", ("train",))])
def test_a_site_without_a_scheme_needs_an_image_in_train(split, missing):
    findings = Findings()
    images = check_rows([Row("row 2", "u.png", "", "p", split)], None, findings)
    check_counts(images, None, findings)
    where = {one.code: one.where for one in findings}
    assert where.get("split_empty", ()) == missing
    assert "one_grade_in_train" not in where


def test_odd_cells_of_optional_columns_are_found_at_once():
    sexes = ["f", "m", "x", ""]
    rows = [Row(f"row {at}", f"{at}.png", "0", "p1", "train", {"sex": sex}) for at, sex in enumerate(sexes, 2)]
    findings = Findings()
    check_rows(rows, preset("icdr5"), findings)
    odd = next(one for one in findings if one.code == "column_odd")
    assert odd.where == ("row 3: sex 'm', of the same patient another one in row 2", "row 4: sex 'x'")
