"""Joining eyes: only what is unmistakable, by pattern, by list; nobody is lost or joined twice."""

from __future__ import annotations

import itertools

import pytest

from fedretina.errors import DataError, SettingsError
from fedretina.prediction.eyes import Owner, by_list, by_name, by_pattern


def owners(*files):
    return dict(zip(files, by_name(files).owners, strict=True))


@pytest.mark.parametrize(
    ("left", "right", "patient"),
    [
        ("10_left.jpg", "10_right.jpg", "10"),
        ("10_LEFT.jpeg", "10_right.png", "10"),
        ("10_OS.jpg", "10_OD.jpg", "10"),
        ("Doe Jane-L.tif", "Doe Jane-R.tif", "Doe Jane"),
        ("a/b/10.os.jpg", "a/b/10.od.jpg", "a/b/10"),
        ("x left.jpg", "x right.jpg", "x"),
        ("2024_left_left.jpg", "2024_left_right.jpg", "2024_left"),
    ],
)
def test_a_pair_of_names_is_a_patient(left, right, patient):
    assert owners(right, left) == {left: Owner(patient, "left"), right: Owner(patient, "right")}


@pytest.mark.parametrize(
    "files",
    [
        ("10_left.jpg", "11_right.jpg"),
        ("a/10_L.jpg", "b/10_R.jpg"),  # two folders may be two people
        ("10_left.jpg", "10_OD.jpg"),  # two habits of naming
        ("10_left.jpg", "10-right.jpg"),
        ("10_left.jpg", "10_left.png"),
        ("10_left.jpg", "10_right.jpg", "10_right.png"),
        ("10_left.jpg", "10_right.jpg", "10_OD.jpg"),
        ("10left.jpg", "10right.jpg"),
        ("left.jpg", "right.jpg"),
        ("_left.jpg", "_right.jpg"),
        ("a_left.jpg", "A_right.jpg"),
        ("10_left_1.jpg", "10_right_1.jpg"),
        ("10_left.jpg", "10_right.jpg", "10"),
    ],
)
def test_what_is_not_unmistakable_is_not_joined(files):
    found = owners(*files)
    assert len({owner.patient for owner in found.values()}) == len(files)


def test_a_lone_eye_is_a_patient_with_one_eye_and_a_lone_letter_is_not():
    assert owners("10_left.jpg") == {"10_left.jpg": Owner("10", "left")}
    assert owners("7_OD.jpg") == {"7_OD.jpg": Owner("7", "right")}
    assert owners("scan-R.jpg") == {"scan-R.jpg": Owner("scan-R.jpg", "")}


def test_no_choice_of_files_gives_one_patient_the_same_eye_twice():
    names = [
        "1_left.jpg",
        "1_right.jpg",
        "1_left.png",
        "1-left.jpg",
        "1_OS.jpg",
        "1_OD.jpg",
        "1.jpg",
        "1_L.jpg",
        "1_R.jpg",
    ]
    for count in range(1, 6):
        for files in itertools.combinations(names, count):
            found = by_name(files).owners
            known = [owner for owner in found if owner.eye]
            assert len(known) == len(set(known))
            assert len(found) == len(files)
            by_patient = [owner.patient for owner in found if not owner.eye]
            assert len(by_patient) == len(set(by_patient))


def test_it_says_how_patients_were_joined():
    how = " ".join(by_name(["10_left.jpg", "10_right.jpg", "x.jpg", "3_left.jpg", "3_left.png"]).how)
    assert "such as 10_left.jpg and 10_right.jpg" in how
    assert "3 photographs were not joined" in how
    assert "2 of these have names of eyes that do not make one pair" in how
    assert "No two photographs" in " ".join(by_name(["a.jpg", "b.jpg"]).how)


def test_a_pattern_joins():
    files = ["2024/OD_0017_a.jpg", "2024/OS_0017_a.jpg", "2024/OD_0017_b.jpg", "other.jpg"]
    joined = by_pattern(files, r"(?P<eye>O[DS])_(?P<patient>\d+)")
    assert joined.owners == (
        Owner("0017", "right"),
        Owner("0017", "left"),
        Owner("0017", "right"),
        Owner("other.jpg", ""),
    )
    assert "1 photograph that the pattern does not fit counted as a patient each." in joined.how[1]
    assert by_pattern(files[:1], r"_(?P<patient>\d+)_").owners == (Owner("0017", ""),)


@pytest.mark.parametrize(
    ("pattern", "error", "sentence"),
    [
        ("(", SettingsError, "no regular expression"),
        (r"(\d+)", SettingsError, "no group named patient"),
        (r"(?P<patient>zzz)", SettingsError, "fits none"),
        (r"(?P<patient>\d+)_(?P<eye>\w+)", DataError, "the eye 'middle'"),
    ],
)
def test_an_unfit_pattern_is_refused(pattern, error, sentence):
    with pytest.raises(error, match=sentence):
        by_pattern(["10_middle.jpg"], pattern)


def test_a_list_joins(tmp_path):
    path = tmp_path / "patients.csv"
    path.write_text(
        "\ufefffile,patient,eye,ward\na.jpg,Ann,L,3\n./sub/b.jpg,Ann,od,3\nc.jpg,Bob,,4\ngone.jpg,Eve,R,4\n"
    )
    joined = by_list(["a.jpg", "sub/b.jpg", "c.jpg", "d.jpg"], path)
    assert joined.owners == (Owner("Ann", "left"), Owner("Ann", "right"), Owner("Bob", ""), Owner("d.jpg", ""))
    assert "by the list patients.csv" in joined.how[0]
    assert "1 photograph that the list does not name" in joined.how[1]
    assert "1 photograph of the list was not in the folder and has no line here." in joined.how[2]
    assert str(tmp_path) not in " ".join(joined.how)


def test_a_list_as_a_spreadsheet_saves_it(tmp_path):
    (tmp_path / "p.csv").write_bytes("File\tPATIENT \tEye\r\na.jpg\tMüller, A\tOD\r\n".encode("utf-16"))
    assert by_list(["a.jpg"], tmp_path / "p.csv").owners == (Owner("Müller, A", "right"),)


def test_a_list_without_eyes_joins_too(tmp_path):
    (tmp_path / "p.csv").write_text("file,patient\na.jpg,Ann\n")
    joined = by_list(["a.jpg"], tmp_path / "p.csv")
    assert (joined.owners, len(joined.how)) == ((Owner("Ann", ""),), 1)
    (tmp_path / "p.csv").write_text("file,patient\na_left.jpg,Ann\nb_OD.jpg,Ann\nc.jpg,Ann\n")
    joined = by_list(["a_left.jpg", "b_OD.jpg", "c.jpg"], tmp_path / "p.csv")
    assert [one.eye for one in joined.owners] == ["left", "right", ""]
    assert "read from the names of the files" in joined.how[1]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name,patient\na.jpg,Ann\n", "columns file and patient"),
        ("file|patient\na.jpg|Ann\n", "separate columns by commas"),
        ("", "columns file and patient"),
        ("file,patient\na.jpg,\n", "row 2: the file or the patient is empty"),
        ("file,patient\na.jpg,Ann\n./a.jpg,Bob\n", "row 3: .* stands in the list already"),
        ("file,patient,eye\na.jpg,Ann,both\n", "row 2 names the eye 'both'"),
        ("file,patient\nb.jpg,Ann\n", "names none of the photographs"),
        ('file,patient\n"a.jpg,Ann\n', "row 2: a quotation mark"),
    ],
)
def test_an_unfit_list_is_refused(tmp_path, text, sentence):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(DataError, match=sentence):
        by_list(["a.jpg"], tmp_path / "p.csv")


def test_a_list_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "p.csv").write_bytes(b"file,patient\n\xff\xfe.jpg,Ann\n")
    with pytest.raises(DataError, match="save it as CSV in UTF-8"):
        by_list(["a.jpg"], tmp_path / "p.csv")
