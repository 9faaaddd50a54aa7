"""Readers of OCT sets over small trees in their layouts, and over the real ones where they are."""

import pytest

import public_sets as sets
from fedretina.data.import_plan import plan_import
from fedretina.data.readers import reader
from fedretina.data.readers.survey import ImportSettings
from fedretina.errors import DataError, SettingsError


def look(name, root, **words):
    return reader(name).survey(root, ImportSettings(**words), root / "out")


def plan(name, root, **words):
    return plan_import(name, root, root / "out", ImportSettings(copies="keep", **words))


def kermany(root, *names):
    for name in names:
        part, file = name.split("/")
        sets.touch(root / part / file.split("-")[0] / f"{file}.jpeg")


@pytest.mark.parametrize("folder", ["", "OCT2017", "CellData/OCT"])
def test_kermany_tells_patients_by_name(tmp_path, folder):
    kermany(tmp_path / folder, "train/CNV-12-1", "train/NORMAL-3-1", "test/CNV-12-2", "val/DME-12-1")
    found = look("kermany", tmp_path)
    assert [photograph.patient for photograph in found.photographs] == ["3", "12", "12", "12"]
    assert [photograph.label for photograph in found.photographs] == ["NORMAL", "CNV", "DME", "CNV"]
    assert found.scheme == "oct4"
    assert found.warnings[0].startswith("1 of 2 patients have scans in more than one of the published parts")


def test_kermany_is_split_anew_unless_asked(tmp_path):
    names = [f"train/{label}-{at}-1" for at, label in enumerate(["NORMAL", "CNV", "DME", "DRUSEN"] * 5)]
    kermany(tmp_path, *names, "train/CNV-1-2", "test/CNV-1-3", "test/NORMAL-99-1")
    rows = plan("kermany", tmp_path).rows
    assert len(rows) == 23
    assert len({row.split for row in rows if row.patient == "1"}) == 1
    official = plan("kermany", tmp_path, official=True)
    assert {row.file for row in official.rows if row.split == "test"} == {
        "test/CNV/CNV-1-3.jpeg",
        "test/NORMAL/NORMAL-99-1.jpeg",
    }
    assert sorted(row.name for row in official.left_out) == ["train/CNV/CNV-1-1.jpeg", "train/CNV/CNV-1-2.jpeg"]


def test_kermany_refuses_names_that_tell_no_patient(tmp_path):
    kermany(tmp_path, "train/CNV-1-1")
    sets.touch(tmp_path / "train" / "CNV" / "cnv_train_1.jpg")
    with pytest.raises(DataError, match=r"cnv_train_1\.jpg is not called CLASS-PATIENT-NUMBER"):
        look("kermany", tmp_path)


@pytest.mark.parametrize("suffix", ["", ".jpg"])
def test_octdl(tmp_path, suffix):
    rows = [("amd_1_1", "AMD", 1), ("amd_1_2", "AMD", 1), ("no_2_1", "NO", 2), ("vid_3_1", "VID", 3)]
    sets.table(
        tmp_path / "OCTDL_labels.csv",
        ("file_name", "disease", "subcategory", "condition", "patient_id", "eye", "sex", "year"),
        *((f"{name}{suffix}", disease, "", "", patient, "OD", "", "") for name, disease, patient in rows),
    )
    for name, disease, _ in rows:
        sets.touch(tmp_path / "OCTDL" / disease / f"{name}.jpg")
    found = look("octdl", tmp_path)
    assert [photograph[:3] for photograph in found.photographs[1:3]] == [
        ("OCTDL/AMD/amd_1_2.jpg", "AMD", "1"),
        ("OCTDL/NO/no_2_1.jpg", "NO", "2"),
    ]
    rows = plan("octdl", tmp_path).rows
    assert {row.split for row in rows} == {"train", "val", "test"}
    sets.table(tmp_path / "OCTDL_labels.csv", ("file_name", "disease", "patient_id"), ("a", "XYZ", 1))
    with pytest.raises(DataError, match="row 2: the disease is 'XYZ'"):
        look("octdl", tmp_path)


@pytest.mark.parametrize("folder", ["", "Publication_Dataset"])
def test_duke(tmp_path, folder):
    for volume in ("AMD1", "AMD2", "DME1", "NORMAL15"):
        for scan in range(3):
            sets.touch(tmp_path / folder / volume / "TIFFs" / "8bitTIFFs" / f"{scan:03}.tif")
    (tmp_path / folder / "tools").mkdir()
    found = look("duke2014", tmp_path)
    assert len(found.photographs) == 12
    prefix = f"{folder}/" if folder else ""
    assert found.photographs[3][:3] == (f"{prefix}AMD2/TIFFs/8bitTIFFs/000.tif", "AMD", "AMD2")
    assert {row.split for row in plan("duke2014", tmp_path).rows} == {"train", "val", "test"}
    (tmp_path / folder / "DME2").mkdir()
    with pytest.raises(DataError, match="DME2 holds no scan"):
        look("duke2014", tmp_path)


def test_octid(tmp_path):
    for name in ("NORMAL/NORMAL1.jpeg", "AMRD/AMRD (2).jpeg", "x/CSR3.JPG", "DR4.jpeg", "MH/MH5.jpeg", "MH/layers.png"):
        sets.touch(tmp_path / name)
    found = look("octid", tmp_path)
    assert sorted(photograph.label for photograph in found.photographs) == ["AMRD", "CSR", "DR", "MH", "NORMAL"]
    assert found.warnings[1].startswith("1 of the images are not called")
    assert {found.grading().index(photograph.label) for photograph in found.photographs} == set(range(5))


def test_folders_of_images_without_a_label(tmp_path):
    sets.class_folders(tmp_path, {"normal": 6, "dme": 6, "Unlabelled": 4})
    pattern = r"(?P<patient>p\d+x\d)_"
    words = {"grades": ("normal", "dme"), "patient_pattern": pattern}
    skipped = plan("class_folders", tmp_path, **words)
    assert len(skipped.rows) == 12
    assert {row.reason for row in skipped.left_out} == {"it has no label"}
    kept = plan("class_folders", tmp_path, unlabelled="train", **words)
    assert kept.rows[:12] == skipped.rows
    assert {(row.label, row.split) for row in kept.rows[12:]} == {("", "train")}
    with pytest.raises(SettingsError, match="unlabelled means nothing to the reader octid"):
        plan("octid", tmp_path, unlabelled="train")


def test_an_image_without_a_label_stays_on_its_patients_side(tmp_path):
    for at in range(12):
        sets.touch(tmp_path / ("normal" if at % 2 else "dme") / f"p{at}_a.jpg")
        sets.touch(tmp_path / "unlabelled" / f"p{at}_b.jpg")
    words = {"grades": ("normal", "dme"), "patient_pattern": r"(?P<patient>p\d+)_", "unlabelled": "train"}
    found = plan("class_folders", tmp_path, **words)
    side = {row.patient: row.split for row in found.rows if row.label}
    assert {row.patient for row in found.rows if not row.label} == {who for who, at in side.items() if at == "train"}
    assert {row.reason.rsplit(" ", 1)[1] for row in found.left_out} == {"val", "test"}


def test_a_set_without_any_label(tmp_path):
    sets.class_folders(tmp_path, {"unlabelled": 4})
    found = plan("class_folders", tmp_path, unlabelled="train")
    assert (found.scheme, found.named) == (None, None)
    assert [(row.label, row.split) for row in found.rows] == [("", "train")] * 4


@pytest.mark.real
@pytest.mark.parametrize(("name", "folder", "images"), [("kermany", "kermany", 16), ("octdl", "octdl", 21)])
def test_real_copies(shared, tmp_path, name, folder, images):
    found = plan_import(name, shared / "native" / folder, tmp_path, ImportSettings())
    assert len(found.rows) == images
    assert {row.split for row in found.rows} == {"train", "val", "test"}
    assert len({row.label for row in found.rows}) == {"kermany": 4, "octdl": 7}[name]
