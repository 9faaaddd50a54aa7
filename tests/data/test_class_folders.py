"""The reader of a folder per class, over small trees; what comes of them is decided in test_import_plan.py."""

import re

import pytest

import public_sets as sets
from fedretina.data.readers.scheme_of import scheme_of
from fedretina.data.readers.survey import ImportSettings
from fedretina.errors import DataError, SettingsError
from fedretina.settings.scheme import preset
from surveyed import look, plan


def test_a_folder_a_class(tmp_path):
    sets.class_folders(tmp_path, {"No_DR": 6, "Mild": 4, "Proliferate_DR": 4})
    sets.touch(tmp_path / "Mild" / "notes.txt")
    sets.touch(tmp_path / "README.md")
    found = look("class_folders", tmp_path)
    assert len(found.photographs) == 14
    scheme = found.grading()
    assert [scheme.index(name) for name in ("No_DR", "Mild", "Proliferate_DR", "3")] == [0, 1, 4, 3]
    assert scheme.referable == ("moderate", "severe", "proliferative")
    assert found.photographs[0].patient == found.photographs[0].file
    assert "--patient-pattern" in found.warnings[0]
    paired = look("class_folders", tmp_path, patient_pattern=r"(?P<patient>p[^_/]+)_\d\.")
    assert [photograph.patient for photograph in paired.photographs[:2]] == ["p1x0", "p1x0"]
    assert paired.warnings == ()


@pytest.mark.parametrize(
    ("folders", "words", "grades"),
    [
        ("0 1 2 3 4", {}, "no_dr mild moderate severe proliferative"),
        ("0 1 2 3 4 5", {}, "no_dr mild moderate severe proliferative ungradable"),
        ("normal PDR ungradable", {}, "no_dr mild moderate severe proliferative ungradable"),
        ("2_late 10_end 0_healthy", {}, "0_healthy 2_late 10_end"),
        ("well ill", {"grades": ("well", "ill")}, "well ill"),
        ("well ill bad", {"grades": ("well", "worse", "ill", "bad"), "ungradable": "bad"}, "well worse ill bad"),
        ("0 3", {"scheme": "normal_3stages"}, "normal stage_1 stage_2 stage_3"),
    ],
)
def test_the_scheme_of_folders(tmp_path, folders, words, grades):
    sets.class_folders(tmp_path, dict.fromkeys(folders.split(), 2))
    scheme = look("class_folders", tmp_path, **words).grading()
    assert " ".join(scheme.grades) == grades
    classes = {scheme.index(folder) for folder in folders.split()}
    assert len(classes) == len(folders.split())


def test_numbers_of_scans_are_no_grades_of_diabetic_retinopathy():
    assert scheme_of(set("01234"), ImportSettings(), "fundus") == scheme_of(set("01234"), ImportSettings()) == "icdr5"
    with pytest.raises(DataError, match=r"the order of the labels .* is not to be seen: name a preset"):
        scheme_of(set("01234"), ImportSettings(), "oct")


@pytest.mark.parametrize("folders", ["0 1", "1 2 3", "well ill", "mild severe", "0_a 0_b", "no_dr Mild glaucoma"])
def test_folders_whose_order_is_not_to_be_seen(tmp_path, folders):
    sets.class_folders(tmp_path, dict.fromkeys(folders.split(), 2))
    with pytest.raises(DataError, match="--grades a,b,c"):
        look("class_folders", tmp_path)


@pytest.mark.parametrize(
    ("folders", "scheme"), [("AMD DME NORMAL", "oct3"), ("CNV DME DRUSEN NORMAL", "oct4"), ("NORMAL AMD DR", "octid")]
)
def test_the_preset_that_knows_the_folders_is_named(tmp_path, folders, scheme):
    sets.class_folders(tmp_path, dict.fromkeys(folders.split(), 2))
    with pytest.raises(DataError, match=f"these are names of .*{scheme}.*--scheme {scheme}"):
        look("class_folders", tmp_path)
    assert look("class_folders", tmp_path, scheme=scheme).grading() == preset(scheme)


def test_grades_that_leave_a_folder_out(tmp_path):
    sets.class_folders(tmp_path, {"well": 2, "ill": 2})
    with pytest.raises(DataError, match=re.escape("labels ['ill'] are not among the grades ['well', 'bad']")):
        look("class_folders", tmp_path, grades=("well", "bad"))
    with pytest.raises(DataError, match="each name stands for one grade"):
        look("class_folders", tmp_path, grades=("well", "ill", "ill"))


def test_folders_with_parts(tmp_path):
    sets.class_folders(tmp_path, {f"{part}/{grade}": 2 for part in ("Train", "VALID", "test") for grade in "01234"})
    rows = plan("class_folders", tmp_path).rows
    assert {(row.file.split("/")[0], row.split) for row in rows} == {
        ("Train", "train"),
        ("VALID", "val"),
        ("test", "test"),
    }
    sets.touch(tmp_path / "0" / "a.jpg")
    with pytest.raises(DataError, match="beside others"):
        look("class_folders", tmp_path)


def test_folders_without_images(tmp_path):
    (tmp_path / "0").mkdir()
    with pytest.raises(DataError, match="no folder of a class with images"):
        look("class_folders", tmp_path)
    with pytest.raises(DataError, match="mend the path"):
        look("class_folders", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", "no regular expression"),
        (r"(\d+)", "no group named patient"),
    ],
)
def test_a_pattern_that_cannot_be_used(tmp_path, pattern, words):
    sets.class_folders(tmp_path, {"0": 2})
    with pytest.raises(SettingsError, match=words):
        look("class_folders", tmp_path, patient_pattern=pattern)


def test_a_pattern_that_does_not_find_all(tmp_path):
    sets.class_folders(tmp_path, {"no_dr": 2, "mild": 2})
    sets.touch(tmp_path / "mild" / "other.jpg")
    with pytest.raises(DataError, match=r"no patient in 1 of 5 files .*: mild/other\.jpg\. Mend"):
        look("class_folders", tmp_path, patient_pattern=r"(?P<patient>p\dx\d)_")
