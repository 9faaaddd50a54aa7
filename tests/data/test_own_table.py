"""A hospital's own table with titles of its own; what comes of its rows is decided in test_import_plan.py."""

import unicodedata

import pytest

import public_sets as sets
from fedretina.errors import DataError, SettingsError
from surveyed import look, plan, reasons

TITLES = {"file": "Bildname", "label": "Grad, Arzt", "patient": "Pat.-Nr."}
HEADER = "Pat.-Nr.;Bildname;Grad, Arzt;Auge;split;Bemerkung"


@pytest.fixture
def hospital(tmp_path):
    def write(*rows, header=HEADER, encoding="utf-8"):
        for name in ("a.JPG", "b.jpg", "c.png", "old/d.tif"):
            sets.touch(tmp_path / "photos" / name)
        (tmp_path / "list.csv").write_text("\n".join([header, *rows]), encoding=encoding)
        return {"labels": tmp_path / "list.csv", "columns": dict(TITLES), "scheme": "icdr5"}

    return tmp_path / "photos", write


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_titles_of_its_own(hospital, encoding):
    root, write = hospital
    words = write("p1;a;0,0;OD;train;;", "p1;B.jpg;2;os;training;", r"p2;old\d;4;;TEST;", encoding=encoding)
    words["columns"] = TITLES | {"eye": "Auge"}
    found = look("own_table", root, **words)
    assert [tuple(photograph)[:4] for photograph in found.photographs] == [
        ("a.JPG", "0", "p1", "train"),
        ("b.jpg", "2", "p1", "train"),
        ("old/d.tif", "4", "p2", "test"),
    ]
    assert [photograph.beside["eye"] for photograph in found.photographs] == ["right", "left", ""]
    assert found.scheme == "icdr5"
    assert found.warnings == ("1 image that no row names stays out.",)


def test_patients_that_no_column_names(hospital):
    root, write = hospital
    words = write("a;0", "b;1", header="Bildname;Grad, Arzt")
    del words["columns"]["patient"]
    found = look("own_table", root, **words)
    assert [photograph.patient for photograph in found.photographs] == ["a.JPG", "b.jpg"]
    assert "--column patient=TITLE" in found.warnings[0]
    found = look("own_table", root, **words, patient_pattern=r"(?P<patient>\w)\.")
    assert [photograph.patient for photograph in found.photographs] == ["a", "b"]
    words = write("p;a;0", ";b;1", header="Pat.-Nr.;Bildname;Grad, Arzt")
    assert look("own_table", root, **words).warnings[0].startswith("1 row names no patient")


def test_rows_without_a_grade_stay_out_or_serve_pre_training(hospital):
    root, write = hospital
    words = write("p1;a;0;;;", "p1;b;;;;", "p2;c;1;;;")
    assert reasons(look("own_table", root, **words)) == {"b.jpg": "it has no label"}
    rows = look("own_table", root, **words, unlabelled="train").photographs
    assert [photograph.label for photograph in rows] == ["0", "", "1"]


@pytest.mark.parametrize(
    ("rows", "words", "told"),
    [
        (["p;a;7;;;"], {}, "list.csv, row 2: 'Grad, Arzt' is '7', and the grading scheme has ['0', '1',"),
        (["p;a;0;;;", "p;b;7;;;", "p;c;8;;;"], {}, "row 3 (and 1 more row): 'Grad, Arzt' is '7'"),
        (
            [f"p;a;{grade};;;" for grade in (0, 1, 2, 3, 4, 7)],
            {"scheme": None},
            "the labels ['7'] stand among ICDR's grades",
        ),
        (["p;;0;;;"], {}, "row 2: 'Bildname' is empty"),
        (["p;a;0;;maybe;"], {}, "row 2: split is 'maybe': write train, val or test"),
        (["p;a;0;;train;", "p;b;0;;;"], {}, "some rows name a split and some do not"),
        (["p;a;;;;"], {}, "no row has a grade in the column 'Grad, Arzt'"),
        (["p;a;0;north;;"], {"columns": TITLES | {"eye": "Auge"}}, "row 2: eye is 'north': write one of"),
        (["p;a;0;;;"], {"columns": {"file": "Bild"}}, "expected the columns 'Bild' and 'label', found ['Pat.-Nr.',"),
        (["p;x;0;;;"], {}, "1 of 1 labelled images are missing under"),
        (["p;x;0;;;"], {}, "Copy them there, mend their names in the list, or leave them out (--bad-files skip)"),
    ],
)
def test_a_mistake_is_told_with_its_mend(hospital, rows, words, told):
    root, write = hospital
    with pytest.raises(DataError) as error:
        plan("own_table", root, **(write(*rows) | words))
    assert told in str(error.value)


def test_a_folder_is_found_in_any_case_and_its_exact_name_first(hospital):
    root, write = hospital
    sets.touch(root / "Old" / "Deep" / "e.jpg")
    sets.touch(root / "Old" / "d.tif")
    files = ("old/d", "Old/d", r"OLD\DEEP\E.JPG", "old/deep/e")
    with pytest.raises(DataError, match=r"'OLD' could be any of Old, old: write its exact name"):
        look("own_table", root, **write(*(f"p;{file};0;;;" for file in files)))
    rows = [f"p;{file};0;;;" for file in ("old/d", "Old/d", r"OLD\DEEP\E.JPG", "old/nowhere/e")]
    words = write(*rows)
    (root / "old" / "d.tif").unlink()
    (root / "old").rmdir()
    found = look("own_table", root, **words)
    assert [photograph.file for photograph in found.photographs] == [
        "Old/d.tif",
        "Old/d.tif",
        "Old/Deep/e.jpg",
        "Old/nowhere/e",
    ]
    assert found.warnings == ()


def test_a_title_may_hold_a_stroke(hospital):
    root, write = hospital
    words = write("p;a;2", header="Pat.-Nr.;Bildname;Grad|Arzt")
    words["columns"] |= {"label": "Grad|Arzt"}
    assert [photograph.label for photograph in look("own_table", root, **words).photographs] == ["2"]


def test_umlauts_are_found_however_they_are_composed(hospital):
    root, write = hospital
    apart = unicodedata.normalize("NFD", "Müller.jpg")
    sets.touch(root / apart)
    found = look("own_table", root, **write("p;MÜLLER;0;;;", f"p;{apart};0;;;"))
    assert [photograph.file for photograph in found.photographs] == [apart, apart]


@pytest.mark.parametrize(("grades", "first"), [("0123", "icdr5"), ("012", "icdr5"), ("0125", "icdr5_ungradable")])
def test_icdr_without_every_grade_names_icdr_first(hospital, grades, first):
    root, write = hospital
    words = write(*(f"p;a;{grade};;;" for grade in grades)) | {"scheme": None}
    with pytest.raises(DataError, match=f"add --scheme {first}\\)") as error:
        look("own_table", root, **words)
    assert "oct" not in str(error.value)


def test_options_that_cannot_be_used(hospital):
    root, write = hospital
    words = write("p;a;0;;;")
    with pytest.raises(SettingsError, match=r"--column auge=.*there is no such column"):
        look("own_table", root, **(words | {"columns": {"auge": "Auge"}}))
    with pytest.raises(SettingsError, match="--labels FILE"):
        look("own_table", root)
    with pytest.raises(SettingsError, match=r"columns means nothing to the reader idrid.*own_table"):
        plan("idrid", root, columns=TITLES)
