"""Readers over small trees in the sets' layouts; what comes of them is decided in test_import_plan.py."""

import re
import struct
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

import public_sets as sets
from fedretina.data.readers import reader, readers
from fedretina.data.readers.survey import Photograph
from fedretina.errors import DataError, SettingsError
from surveyed import labels, look, plan, reasons


def test_every_reader_is_found_and_described():
    for entry in readers().values():
        assert all((entry.title, entry.layout, entry.grades, entry.patients, entry.splits, entry.rules))
    with pytest.raises(SettingsError, match="aptos2019"):
        reader("aptos")


# Without its extra, oct_volumes says first that it needs it: test_oct_volumes.py.
@pytest.mark.parametrize("name", [name for name in readers() if name != "oct_volumes"])
def test_no_set_at_all(tmp_path, name):
    words = {"labels": tmp_path / "labels.csv"} if name in ("dicom", "own_table") else {}
    with pytest.raises(DataError, match="unpack"):
        look(name, tmp_path, **words)


def test_aptos(tmp_path):
    sets.aptos(tmp_path, [0, 1, 2, 3, 4] * 20)
    rows = plan("aptos2019", tmp_path).rows
    assert len(rows) == 100
    assert rows[7][:3] == ("train_images/i007.png", "2", "i007")
    assert [sum(row.split == split for row in rows) for split in ("train", "val", "test")] == [70, 15, 15]
    assert rows == plan("aptos2019", tmp_path).rows
    assert rows != plan("aptos2019", tmp_path, seed=2).rows


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,diagnosis\na,0\n", "id_code"),
        ("", "id_code"),
        ("id_code,diagnosis\n", "no image"),
        ("id_code,diagnosis\ni000,\n", "row 2: 'diagnosis' is empty"),
        ("id_code,diagnosis\ni000\n", "row 2: 'diagnosis' is empty"),
        ("id_code,diagnosis\n\ni000,9\n", "row 3: 'diagnosis' is '9', but the set has 0 to 4"),
    ],
)
def test_a_damaged_label_file(tmp_path, text, words):
    sets.aptos(tmp_path, [0])
    (tmp_path / "train.csv").write_text(text)
    with pytest.raises(DataError, match=words):
        look("aptos2019", tmp_path)


def test_a_label_file_in_no_encoding_that_is_known(tmp_path):
    sets.aptos(tmp_path, [0])
    (tmp_path / "train.csv").write_bytes(b"id_code,diagnosis\n\xff\xfe,0\n")
    with pytest.raises(DataError, match=r"line 2: the byte 0xff is not UTF-8.*save it as CSV in UTF-8"):
        look("aptos2019", tmp_path)


def test_names_differ_from_the_list_in_case_ending_and_mark(tmp_path):
    sets.aptos(tmp_path, [0, 1, 2, 3])
    images = tmp_path / "train_images"
    (images / "i000.png").rename(images / "i000.PNG")
    (images / "i001.png").rename(images / "I001.jpeg")
    (tmp_path / "train.csv").write_text("﻿ID_Code ,Diagnosis\r\ni000,0\r\ni001,1.0\r\ni002,2\r\ni003,3\r\n")
    sets.touch(images / "._i000.png")
    found = look("aptos2019", tmp_path)
    assert list(labels(found).items()) == [("i000.PNG", "0"), ("I001.jpeg", "1"), ("i002.png", "2"), ("i003.png", "3")]
    assert len(found.warnings) == 1  # the hidden file is no image without a label


def test_an_image_that_two_files_could_be(tmp_path):
    sets.aptos(tmp_path, [0, 1])
    images = tmp_path / "train_images"
    (images / "i000.png").rename(images / "i000.jpg")
    sets.touch(images / "i000.tif")
    with pytest.raises(DataError, match=r"i000\.png could be any of i000\.jpg, i000\.tif"):
        look("aptos2019", tmp_path)


def test_a_name_that_begins_as_another_is_another(tmp_path):
    sets.eyepacs(tmp_path, [(0, 0)] * 11)
    (tmp_path / "train" / "1_left.jpeg").unlink()
    with pytest.raises(DataError, match="1 of 22 labelled images are missing"):
        plan("eyepacs", tmp_path)


def test_images_without_a_label_are_counted(tmp_path):
    sets.aptos(tmp_path, [0, 1])
    sets.touch(tmp_path / "train_images" / "stranger.png")
    assert "1 image has no label in the set's lists and stay out." in look("aptos2019", tmp_path).warnings


def test_idrid_keeps_its_test_split_and_parts_its_names(tmp_path):
    part = sets.idrid(tmp_path, [0, 1, 2, 3, 4] * 8, [0, 2, 4])
    rows = plan("idrid", tmp_path, fractions=(0.6, 0.2, 0.2)).rows
    train = [row for row in rows if "Training" in row.file]
    test = [row for row in rows if "Testing" in row.file]
    assert {row.split for row in test} == {"test"}
    assert [sum(row.split == split for row in train) for split in ("train", "val", "test")] == [30, 10, 0]
    assert len({row.patient for row in rows}) == len(rows) == 43
    assert all((tmp_path / row.file).is_file() for row in rows)
    inner = plan("idrid", part, fractions=(0.6, 0.2, 0.2)).rows
    assert [row[1:] for row in inner] == [row[1:] for row in rows]


def test_eyepacs_pairs_the_eyes(tmp_path):
    sets.eyepacs(tmp_path, [(k % 5, (k + 1) % 5) for k in range(20)])
    found = look("eyepacs", tmp_path)
    assert found.scheme == "icdr5"
    assert found.photographs[0] == Photograph("train/1_left.jpeg", "0", "1", beside={"eye": "left"})
    assert found.photographs[19] == Photograph("train/10_right.jpeg", "0", "10", beside={"eye": "right"})
    rows = plan("eyepacs", tmp_path).rows
    homes = {row.patient: {other.split for other in rows if other.patient == row.patient} for row in rows}
    assert len(homes) == 20
    assert all(len(splits) == 1 for splits in homes.values())


def test_eyepacs_with_its_test_part(tmp_path):
    sets.eyepacs(tmp_path, [(0, 1), (2, 3), (4, 4), (0, 0)])
    sets.eyepacs(tmp_path, [(2, 2), (1, 0)], "test", "retinopathy_solution.csv", first=50)
    solution = (tmp_path / "retinopathy_solution.csv").read_text().replace("\n", ",Private\n")
    (tmp_path / "retinopathy_solution.csv").write_text(solution.replace("level,Private", "level,Usage"))
    rows = plan("eyepacs", tmp_path).rows
    assert {row.patient for row in rows if row.split == "test"} == {"50", "51"}
    assert {row.patient for row in rows if row.split != "test"} == {"1", "2", "3", "4"}
    assert {row.split for row in plan("eyepacs", tmp_path, official=False).rows} == {"train", "val", "test"}
    (tmp_path / "retinopathy_solution.csv").unlink()
    lone = look("eyepacs", tmp_path)
    assert "retinopathy_solution.csv and the folder test" in lone.warnings[0]
    assert {photograph.part for photograph in lone.photographs} == {None}


def test_eyepacs_with_eyeq(tmp_path):
    sets.eyepacs(tmp_path, [(0, 1), (2, 3), (4, 0)])
    rows = [(0, "1_left.jpeg", 0, 0), (1, "1_right.jpeg", 2, 1), (2, "2_left.jpeg", 1, 2), (3, "2_right.jpeg", 2, 3)]
    sets.table(tmp_path / "Label_EyeQ_train.csv", ("", "image", "quality", "DR_grade"), *rows)
    found = look("eyepacs", tmp_path)
    assert found.scheme == "icdr5_ungradable"
    assert found.grading().index("5") == found.grading().ungradable_class
    assert [photograph.label for photograph in found.photographs] == ["0", "5", "2", "5", "4", "0"]
    assert found.warnings == ("EyeQ has not graded the quality of 2 images: they keep their grade.",)
    sets.table(tmp_path / "Label_EyeQ_test.csv", ("", "image", "quality", "DR_grade"), (0, "3_left.jpeg", 7, 4))
    with pytest.raises(DataError, match="'quality' is '7'"):
        look("eyepacs", tmp_path)


def test_eyepacs_names_of_another_form(tmp_path):
    sets.eyepacs(tmp_path, [(0, 1)])
    sets.table(tmp_path / "trainLabels.csv", ("image", "level"), ("1_left", 0), ("a_middle", 0))
    with pytest.raises(DataError, match="row 3: image is 'a_middle', expected a name such as 10_left"):
        look("eyepacs", tmp_path)


def test_ddr_keeps_all_three_parts(tmp_path):
    sets.ddr(tmp_path, train=[0, 1, 2, 3, 4, 5], valid=[0, 5], test=[2, 4, 1])
    for root in (tmp_path, tmp_path / "DR_grading"):
        rows = plan("ddr", root).rows
        assert [sum(row.split == split for row in rows) for split in ("train", "val", "test")] == [6, 2, 3]
        assert all((root / row.file).is_file() for row in rows)
    assert look("ddr", tmp_path).grading().ungradable == "ungradable"


@pytest.mark.parametrize("line", ["a.jpg 6", "a.jpg", "a.jpg two"])
def test_ddr_with_a_damaged_line(tmp_path, line):
    sets.ddr(tmp_path, train=[0, 1], valid=[0], test=[1])
    (tmp_path / "DR_grading" / "valid.txt").write_text(f"\n{line}\n")
    with pytest.raises(DataError, match=f"valid.txt, line 2: found '{line}'"):
        look("ddr", tmp_path)
    (tmp_path / "DR_grading" / "valid.txt").write_text("\n")
    with pytest.raises(DataError, match="lists no image"):
        look("ddr", tmp_path)


def test_messidor_applies_the_errata(tmp_path):
    sets.messidor1(tmp_path, 11, {sets.CORRECTED[0]: 3, sets.CORRECTED[1]: 3, "20051020_1_0100_PP": 2})
    same = {"20051202_55562_0400_PP": 1, "20051202_54611_0400_PP": 1}
    differ = {"20051202_55626_0400_PP": 2, "20051205_33025_0400_PP": 3}
    alone = {"20051202_54547_0400_PP": 0}
    sets.messidor1(tmp_path, 33, same | differ | alone)
    found = look("messidor1", tmp_path)
    assert found.scheme == "normal_3stages"
    assert labels(found) == {
        f"{sets.CORRECTED[0]}.tif": "0",
        f"{sets.CORRECTED[1]}.tif": "3",
        "20051020_1_0100_PP.tif": "2",
        "20051202_55562_0400_PP.tif": "1",
        "20051202_54547_0400_PP.tif": "0",
    }
    assert reasons(found) == {
        "20051202_54611_0400_PP.tif": "the set's errata: one picture, two names",
        "20051202_55626_0400_PP.tif": "the set's errata: one picture, two names, two grades",
        "20051205_33025_0400_PP.tif": "the set's errata: one picture, two names, two grades",
    }
    assert any(sentence.startswith("1 of the 4 grades") for sentence in found.warnings)
    assert any(sentence.startswith("found 2 of the set's 12 tables") for sentence in found.warnings)
    assert all((tmp_path / photograph.file).is_file() for photograph in found.photographs)


def test_messidor_pairs_eyes_by_the_list_of_messidor2(tmp_path):
    sets.messidor1(tmp_path, 12, {"a": 0, "b": 1, "c": 2})
    assert "there is no messidor-2.csv" in look("messidor1", tmp_path).warnings[0]
    sets.table(tmp_path / "messidor-2.csv", ("left", "right"), ("a.png", "B.png"), separator=";")
    found = look("messidor1", tmp_path)
    assert [photograph.patient for photograph in found.photographs] == ["a", "a", "c"]
    assert found.warnings[0].startswith("1 of 3 images stand in no pair")


def test_messidor_tables_in_the_folders_of_the_bases_and_in_a_french_encoding(tmp_path):
    header = "Image name;Ophthalmologic department;Retinopathy grade;Risk of macular edema \n"
    folder = tmp_path / "Base21"
    folder.mkdir()
    (folder / "Annotation Base21.csv").write_bytes(f"{header}a.tif;Lariboisière;3;0\n".encode("cp1252"))
    sets.touch(folder / "a.TIF")
    assert labels(look("messidor1", tmp_path)) == {"a.TIF": "3"}


class _Sheet(SimpleNamespace):
    def row_values(self, at):
        return self.rows[at]


def test_an_excel_table_is_read_by_the_user_s_own_library(tmp_path, monkeypatch):
    path = tmp_path / "Annotation_Base34_update.xls"
    path.write_bytes(b"\xd0\xcf\x11\xe0")
    sets.touch(tmp_path / "Base34" / "a.tif")
    monkeypatch.setitem(sys.modules, "xlrd", None)
    with pytest.raises(
        DataError, match=r'pip install "xlrd>=2"`, or save its first sheet as Annotation_Base34_update\.csv'
    ):
        look("messidor1", tmp_path)
    sheet = _Sheet(rows=[["Image name", "Retinopathy grade"], ["a.tif", 2.0], ["", ""]], nrows=3)
    book = SimpleNamespace(sheet_by_index=[sheet].__getitem__)
    monkeypatch.setitem(sys.modules, "xlrd", SimpleNamespace(open_workbook={str(path): book}.__getitem__))
    assert labels(look("messidor1", tmp_path)) == {"a.tif": "2"}


class DamageError(Exception):
    """Stands for an error class of the library's own."""


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (DamageError("no BOF record"), "no BOF record"),
        (struct.error("unpack requires a buffer of 8 bytes"), "unpack requires a buffer of 8 bytes"),
        (IndexError("list index out of range"), "list index out of range"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_a_damaged_excel_table(tmp_path, monkeypatch, damage, told):
    (tmp_path / "Annotation_Base34_update.xls").write_bytes(b"\xd0\xcf\x11\xe0")
    sets.touch(tmp_path / "Base34" / "a.tif")

    def refuse(path):
        raise damage

    monkeypatch.setitem(sys.modules, "xlrd", SimpleNamespace(open_workbook=refuse))
    with pytest.raises(
        DataError, match=rf"cannot be read \({re.escape(told)}\): unpack the set again, or save it as CSV"
    ):
        look("messidor1", tmp_path)


def test_a_newer_excel_table(tmp_path, monkeypatch):
    path = tmp_path / "ODIR-5K_Training_Annotations(Updated)_V2.xlsx"
    path.write_bytes(b"PK")
    lines = [(*sets.ODIR_HEADER, *sets.ODIR_KEYWORDS), *sets.odir_rows({7: ("normal fundus", None)})]
    book = SimpleNamespace(worksheets=[SimpleNamespace(iter_rows=lambda values_only: lines)], close=lambda: None)
    monkeypatch.setitem(sys.modules, "openpyxl", SimpleNamespace(load_workbook=lambda *args, **words: book))
    found = look("odir5k", tmp_path)
    assert labels(found) == {"7_left.jpg": "0"}
    assert reasons(found) == {"7_right.jpg": "its keywords tell nothing of the eye"}

    def cut(values_only):
        yield lines[0]
        ElementTree.fromstring("<row>")

    book.worksheets[0].iter_rows = cut  # the sheet is read row by row, after the file has been opened
    with pytest.raises(
        DataError, match=r"cannot be read \(no element found: .*\): unpack the set again, or save it as"
    ):
        look("odir5k", tmp_path)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(DataError, match=r'pip install "openpyxl>=3\.1"`, or save its first sheet'):
        look("odir5k", tmp_path)


def test_messidor2(tmp_path):
    grades = {"a_PP.png": (0, 1), "b_PP.png": ("2.0", "1.0"), "IM1.JPG": (4, 1), "IM2.JPG": ("", 0), "IM3.JPG": (1, 0)}
    sets.messidor2(tmp_path, grades, pairs=[("b_PP.png", "a_PP.png"), ("IM1.jpg", "IM2.jpg")])
    found = look("messidor2", tmp_path)
    assert labels(found) == {"a_PP.png": "0", "b_PP.png": "2", "IM1.JPG": "4"}
    assert [photograph.patient for photograph in found.photographs] == ["b_PP", "b_PP", "IM1"]
    assert set(reasons(found)) == {"IM2.JPG", "IM3.JPG"}
    assert found.warnings == ()


def test_messidor2_in_its_other_form(tmp_path):
    sets.messidor2(tmp_path, {"a.png": (3, 1)})
    text = (tmp_path / "messidor_data.csv").read_text()
    text = text.replace("image_id", "id_code").replace("adjudicated_dr_grade", "diagnosis")
    (tmp_path / "messidor_data.csv").write_text(text)
    assert labels(look("messidor2", tmp_path)) == {"a.png": "3"}
    (tmp_path / "messidor_data.csv").write_text("image,diagnosis\na.png,1\n")
    with pytest.raises(DataError, match="'image_id' or 'id_code'"):
        look("messidor2", tmp_path)


def test_an_image_in_two_pairs_joins_them(tmp_path):
    sets.messidor2(tmp_path, dict.fromkeys(("a.png", "b.png", "c.png", "d.png"), (0, 1)))
    pairs = [("a.png", "b.png"), ("c.png", "d.png"), ("b.png", "c.png")]
    sets.table(tmp_path / "messidor-2.csv", ("left", "right"), *pairs, separator=";")
    assert {photograph.patient for photograph in look("messidor2", tmp_path).photographs} == {"a"}


ODIR_EYES = {
    1: ("normal fundus", "mild nonproliferative retinopathy"),
    2: ("moderate non proliferative retinopathy，drusen", "severe nonproliferative retinopathy"),
    3: ("proliferative diabetic retinopathy", "severe proliferative diabetic retinopathy"),
    4: ("lens dust，normal fundus", "normal fundus?low image quality"),
    5: ("suspected diabetic retinopathy", "suspected moderate non proliferative retinopathy，normal fundus"),
    6: ("diabetic retinopathy", "hypertensive retinopathy，diabetic retinopathy"),
    7: ("glaucoma", "normal fundus，drusen"),
    8: ("anterior segment image，mild nonproliferative retinopathy", "no fundus image"),
    9: ("low image quality", "hypertensive retinopathy"),
    10: (
        "Mild  Nonproliferative retinopathy，moderate nonproliferative retinopathy",
        "suspicious diabetic retinopathy",
    ),
}
ODIR_GRADES = {
    "1_left.jpg": "0",
    "1_right.jpg": "1",
    "2_left.jpg": "2",
    "2_right.jpg": "3",
    "3_left.jpg": "4",
    "3_right.jpg": "4",
    "4_left.jpg": "0",
    "4_right.jpg": "0",
    "10_left.jpg": "2",
}
ODIR_REASONS = {
    "5_left.jpg": "diabetic retinopathy is only suspected",
    "5_right.jpg": "diabetic retinopathy is only suspected",
    "6_left.jpg": "diabetic retinopathy without a stage",
    "6_right.jpg": "diabetic retinopathy without a stage",
    "7_left.jpg": "other findings, and retinopathy is not mentioned",
    "7_right.jpg": "other findings, and retinopathy is not mentioned",
    "8_left.jpg": "it is no picture of a fundus",
    "8_right.jpg": "it is no picture of a fundus",
    "9_left.jpg": "its keywords tell nothing of the eye",
    "9_right.jpg": "other findings, and retinopathy is not mentioned",
    "10_right.jpg": "diabetic retinopathy is only suspected",
}


def test_odir_reads_grades_from_the_keywords_of_each_eye(tmp_path):
    sets.odir(tmp_path, ODIR_EYES)
    found = look("odir5k", tmp_path)
    assert labels(found) == ODIR_GRADES
    assert reasons(found) == ODIR_REASONS
    assert {photograph.file: photograph.patient for photograph in found.photographs}[
        "Training Images/10_left.jpg"
    ] == "10"
    assert "1 of the graded eyes have other findings beside retinopathy." in found.warnings
    merged = plan("odir5k", tmp_path, scheme="normal_3stages")
    assert merged.scheme.grades[merged.scheme.index("4")] == merged.scheme.grades[merged.scheme.index("3")]


@pytest.mark.parametrize(
    ("age", "sex", "told"),
    [
        ("39", "Male", ("male", "under_40")),
        ("40", "female", ("female", "from_40")),
        ("93.0", "Female", ("female", "from_70")),
        ("1", "Male", ("male", "")),  # stands where nobody entered an age
        ("?", "", ("", "")),
    ],
)
def test_odir_tells_eye_sex_and_age(tmp_path, age, sex, told):
    sets.odir(tmp_path, ODIR_EYES)
    (table,) = tmp_path.glob("*.csv")
    table.write_text(table.read_text().replace(",60,Male,", f",{age},{sex},"))
    found = plan("odir5k", tmp_path)
    assert found.columns == (*(name for name, cell in zip(("sex", "age_band"), told, strict=True) if cell), "eye")
    sides = {row.file.split("_")[-1].removesuffix(".jpg"): row.beside for row in found.rows}
    assert sides == {side: (*filter(None, told), side) for side in ("left", "right")}


@pytest.mark.parametrize(("risk", "told"), [("2", "yes"), ("1", "no"), ("0", "no")])
def test_exudates_near_the_fovea_are_macular_oedema(tmp_path, risk, told):
    sets.idrid(tmp_path, [0, 1, 2, 3, 4] * 8, [0, 2, 4])
    for table in tmp_path.rglob("*.csv"):
        table.write_text(re.sub(r"(IDRiD_\d+,\d),0", rf"\1,{risk}", table.read_text()))
    found = plan("idrid", tmp_path)
    assert (found.columns, {row.beside for row in found.rows}) == (("macular_oedema",), {(told,)})


def test_odir_as_kaggle_has_it(tmp_path):
    files = [file for file in ODIR_GRADES if file != "3_left.jpg"] + list(ODIR_REASONS)
    sets.odir_kaggle(tmp_path, ODIR_EYES, files)
    found = look("odir5k", tmp_path)
    assert labels(found) == {file: grade for file, grade in ODIR_GRADES.items() if file != "3_left.jpg"}
    assert reasons(found) == ODIR_REASONS
    text = (tmp_path / "full_df.csv").read_text()
    (tmp_path / "full_df.csv").write_text(text.replace("0,0,1_left.jpg", "0,0,9_left.jpg"))
    with pytest.raises(DataError, match=r"filename is '9_left\.jpg', which is none of the patient's two images"):
        look("odir5k", tmp_path)


def test_odir_with_all_three_parts(tmp_path):
    for number, (folder, name) in enumerate(
        [("Training Set", "training"), ("Off-site_Test_Set", "off-site test"), ("On-site Test Set", "on-site test")]
    ):
        eyes = {10 * number + k: ("normal fundus", "mild nonproliferative retinopathy") for k in range(2)}
        sets.odir(tmp_path / folder, eyes, f"Annotation/{name} annotation (English).csv", "Images")
    rows = plan("odir5k", tmp_path).rows
    assert {(row.file.split("/")[0], row.split) for row in rows} == {
        ("Training Set", "train"),
        ("Off-site_Test_Set", "val"),
        ("On-site Test Set", "test"),
    }
    assert len(rows) == 12
