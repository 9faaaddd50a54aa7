"""An import of DICOM photographs, written here with pydicom: it keeps nothing of a header."""

import csv
import json
import stat

import numpy as np
import pytest
import yaml

from fedretina.data.decode import decode_image
from fedretina.data.patient_keys import keyed, site_salt
from fedretina.data.readers.survey import ImportSettings
from fedretina.data.site_data import load_site_data
from fedretina.data.site_import import import_set
from fedretina.errors import DataError, SettingsError
from fedretina.settings.images import FundusSettings
from fedretina.settings.site import SiteDataSettings

pytest.importorskip("pydicom", reason="the extra dicom is not installed")

from dicom_writing import ramp, write_as


@pytest.fixture
def archive(tmp_path):
    """Ten patients with two eyes each, and a table of labels by file."""
    root = tmp_path / "archive"
    rows = []
    for k in range(20):
        patient, side = f"MRN{k // 2:04}", "LR"[k % 2]
        write_as(
            root / f"{patient}" / f"eye{side}.dcm",
            ramp(k),
            SOPInstanceUID=f"1.2.840.99.{k}",
            PatientID=patient,
            PatientName=f"Secret^Person{k}",
            ImageLaterality=side,
            BurnedInAnnotation="NO",
        )
        rows.append((f"{patient}/eye{side}.dcm", f"1.2.840.99.{k}", k % 5))
    return root, rows


def labels(tmp_path, rows, column="file"):
    path = tmp_path / "labels.csv"
    with open(path, "w", newline="") as handle:
        csv.writer(handle).writerows([(column, "label"), *rows])
    return path


def do_import(tmp_path, root, table, out="out", **words):
    return import_set("dicom", root, tmp_path / out, ImportSettings(labels=table, **words))


def manifest(folder):
    with open(folder / "manifest.csv", newline="") as handle:
        return list(csv.DictReader(handle))


def split_of(folder, patient):
    (split,) = {row["split"] for row in manifest(folder) if row["patient"] == patient}
    return split


def test_an_import_keeps_nothing_of_a_header(archive, tmp_path):
    root, rows = archive
    table = labels(tmp_path, [(file, label) for file, _, label in rows])
    record = do_import(tmp_path, root, table)
    out = tmp_path / "out"
    assert record["scheme"] == "icdr5"
    assert record["patients_hashed"]
    assert record["left_out"] == {}
    assert not any("burnt" in sentence for sentence in record["warnings"])
    assert stat.S_IMODE((out / "patient_salt").stat().st_mode) == 0o600
    assert stat.S_IMODE((out / "images").stat().st_mode) == 0o700
    found = manifest(out)
    assert len(found) == 20
    assert len({row["patient"] for row in found}) == 10
    assert len({(row["patient"], row["split"]) for row in found}) == 10
    shown = {decode_image(out / "images" / row["file"])[0, 0, 2]: int(row["label"]) for row in found}
    assert shown == {40 + k: k % 5 for k in range(20)}
    written = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    for secret in (b"MRN", b"Secret", b"Person", b"1.2.840", b"eyeL"):
        assert secret not in written
    settings = SiteDataSettings(
        manifest=out / "manifest.csv", images=out / "images", scheme="icdr5", bad_files="refuse"
    )
    assert yaml.safe_load((out / "site.yaml").read_text())["data"]["images"] == "images"
    data = load_site_data("here", settings, FundusSettings(image_size=32), 1, tmp_path / "cache")
    assert data.graded == {split: sum(grades.values()) for split, grades in record["images"].items()}
    with open(out / "photographs.csv", newline="") as handle:
        sides = [row["laterality"] for row in csv.DictReader(handle)]
    assert (sides.count("left"), sides.count("right")) == (10, 10)


def test_half_of_a_photograph_that_a_killed_import_left_goes_with_the_next(archive, tmp_path, monkeypatch):
    root, rows = archive
    table = labels(tmp_path, [(file, label) for file, _, label in rows])

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            do_import(tmp_path, root, table)
    images = tmp_path / "out" / "images"
    (half,) = images.iterdir()
    assert half.read_bytes().startswith(b"\x89PNG")
    (tmp_path / "out" / ".manifest.csv.1.2.tmp").write_text("file,label,patient\n")
    import_set("dicom", root, tmp_path / "out", ImportSettings(labels=table), replace=True)
    assert len(list(images.iterdir())) == len(rows)
    assert not list((tmp_path / "out").glob(".*"))


def test_a_table_by_instance_gives_the_same_import(archive, tmp_path):
    root, rows = archive
    salt = tmp_path / "salt"
    by_file = labels(tmp_path, [(file, label) for file, _, label in rows])
    first = do_import(tmp_path, root, by_file, "a", salt=salt)
    by_uid = labels(tmp_path, [(uid, label) for _, uid, label in reversed(rows)], "SOPInstanceUID")
    assert do_import(tmp_path, root, by_uid, "b", salt=salt) == first
    assert (tmp_path / "a" / "manifest.csv").read_bytes() == (tmp_path / "b" / "manifest.csv").read_bytes()
    assert do_import(tmp_path, root, by_uid, "c")["manifest_sha256"] != first["manifest_sha256"]


def test_a_patient_in_two_spellings_is_one_and_keeps_key_and_split(archive, tmp_path):
    root, rows = archive
    table = [(file, label) for file, _, label in rows]
    do_import(tmp_path, root, labels(tmp_path, table))
    out = tmp_path / "out"
    before = {row["patient"]: row["split"] for row in manifest(out)}
    salt = site_salt(out / "patient_salt")
    assert set(before) == {keyed(salt, "patient", f"MRN{k:04}") for k in range(10)}
    for k in range(10):
        other = f"MRN{k:04}".lower() if k % 2 else f" MRN {k:04}"  # one sorts before the earlier spelling, one behind
        write_as(root / f"more{k}.dcm", ramp(30 + k), SOPInstanceUID=f"1.2.840.98.{k}", PatientID=other)
        table.append((f"more{k}.dcm", k % 5))
    settings = ImportSettings(labels=labels(tmp_path, table))
    record = import_set("dicom", root, out, settings, replace=True)
    assert {row["patient"]: row["split"] for row in manifest(out)} == before
    assert len(manifest(out)) == 30
    assert record["kept"]["patients"] == 10
    assert "10 names of patients differ from another" in " ".join(record["warnings"])


def test_a_patient_whom_an_older_manifest_has_under_two_keys_stays_in_train(archive, tmp_path):
    root, rows = archive
    table = [(file, label) for file, _, label in rows]
    do_import(tmp_path, root, labels(tmp_path, table))
    out = tmp_path / "out"
    salt = site_salt(out / "patient_salt")
    tested = next(k for k in range(10) if split_of(out, keyed(salt, "patient", f"MRN{k:04}")) == "test")
    other = keyed(salt, "patient", f"mrn{tested:04}")
    with open(out / "manifest.csv", "a") as handle:
        handle.write(f"{'0' * 32}.png,0,{other},train,left\n")
    write_as(root / "more.dcm", ramp(30), SOPInstanceUID="1.2.840.98", PatientID=f"mrn{tested:04}")
    # New patients fill test where that one was alone there.
    for k in range(5):
        write_as(root / f"new{k}.dcm", ramp(40 + k), SOPInstanceUID=f"1.2.840.97.{k}", PatientID=f"new{k}")
        table.append((f"new{k}.dcm", k))
    import_set("dicom", root, out, ImportSettings(labels=labels(tmp_path, [*table, ("more.dcm", 0)])), replace=True)
    assert split_of(out, other) == "train"
    assert sum(row["patient"] == other for row in manifest(out)) == 3
    assert len({row["patient"] for row in manifest(out)}) == 15


def test_what_cannot_be_imported_is_counted_and_the_rest_is(archive, tmp_path):
    root, rows = archive
    table = [(file, label) for file, _, label in rows]
    write_as(root / "x" / "oct.dcm", Modality="OPT")
    write_as(root / "x" / "series.dcm", NumberOfFrames=2)
    write_as(root / "x" / "nobody.dcm", PatientID="")
    write_as(root / "x" / "nameless.dcm", SOPInstanceUID=None)
    write_as(root / "x" / "again.dcm", SOPInstanceUID="1.2.840.99.0")
    write_as(root / "x" / "unlabelled.dcm")
    table += [(f"x/{name}.dcm", 0) for name in ("oct", "series", "nobody", "nameless", "again")]
    record = do_import(tmp_path, root, labels(tmp_path, table))
    assert record["left_out"] == {
        "its modality is OPT, expected OP": 1,
        "it has 2 frames, expected one": 1,
        "it names no patient, so it cannot be kept on one side of a split": 1,
        "it has no SOP Instance UID": 1,
        "the same SOP Instance UID stands in another file": 1,
        "the table has no label for it": 1,
    }
    assert len(manifest(tmp_path / "out")) == 20


def test_burnt_in_text_and_grey_are_warned_of(tmp_path):
    for k in range(12):
        tags = [{"BurnedInAnnotation": "YES"}, {}, {"BurnedInAnnotation": "NO", "ImageLaterality": "L"}][k % 3]
        write_as(tmp_path / "set" / f"{k}", ramp(k), SOPInstanceUID=f"1.2.{k}", PatientID=f"p{k}", **tags)
    grey = np.full((8, 8), 7, np.uint8)
    tags = {"SOPInstanceUID": "1.2.12", "PatientID": "p12", "BurnedInAnnotation": "NO"}
    write_as(tmp_path / "set" / "12", grey, "MONOCHROME2", **tags)
    table = labels(tmp_path, [(str(k), k % 5) for k in range(13)])
    warnings = do_import(tmp_path, tmp_path / "set", table)["warnings"]
    assert warnings[:4] == [
        "4 of 13 photographs say that text is burnt into the picture: look at them before anything leaves the site.",
        "4 of 13 photographs do not say whether text is burnt into the picture: look at some of them.",
        "1 of 13 photographs are monochrome, as angiograms and red-free photographs are: do they belong here?",
        "9 of 13 photographs do not say which eye they show.",
    ]
    with open(tmp_path / "out" / "photographs.csv", newline="") as handle:
        assert [row["burned_in"] for row in csv.DictReader(handle)].count("yes") == 4


def test_a_damaged_file_stops_the_import_or_is_left_out(archive, tmp_path):
    root, rows = archive
    write_as(root / "bad.dcm", data=b"short!")
    table = labels(tmp_path, [*((file, label) for file, _, label in rows), ("bad.dcm", 1), ("gone.dcm", 1)])
    with pytest.raises(DataError, match=r"1 of 22 labelled photographs are missing: gone\.dcm"):
        do_import(tmp_path, root, table)
    reasons = do_import(tmp_path, root, table, bad_files="skip")["left_out"]
    assert reasons["the image is missing"] == 1
    assert reasons["the file is damaged, or compressed in a way that cannot be undone here"] == 1
    table = labels(tmp_path, [*((file, label) for file, _, label in rows), ("bad.dcm", 1)])
    with pytest.raises(DataError, match=r"bad\.dcm has pixels that cannot be read"):
        do_import(tmp_path, root, table, "other")


def test_images_of_an_earlier_import_go(archive, tmp_path):
    root, rows = archive
    do_import(tmp_path, root, labels(tmp_path, [(file, label) for file, _, label in rows]))
    table = labels(tmp_path, [(file, label) for file, _, label in rows[:10]])
    # Which patient is in which split hangs on the salt: dealt out anew, five are enough for all three.
    settings = ImportSettings(labels=table, seed=2)
    images = tmp_path / "out" / "images"
    (images / "of_the_hospital.png").touch()
    import_set("dicom", root, tmp_path / "out", settings, replace=True)
    kept = {row["file"] for row in manifest(tmp_path / "out")}
    assert len(kept) == 10
    assert {path.name for path in images.iterdir()} == {*kept, "of_the_hospital.png"}


def test_a_damaged_header_is_left_out_of_a_table_by_instance(archive, tmp_path):
    root, rows = archive
    whole = write_as(root / "bad").read_bytes()
    (root / "bad").write_bytes(whole.replace(b"\x08\x00\x18\x00UI", b"\x08\x00\x18\x00Z?"))
    table = labels(tmp_path, [(uid, label) for _, uid, label in rows], "sop_instance_uid")
    record = do_import(tmp_path, root, table, bad_files="skip")
    assert record["left_out"] == {"the file is damaged, or compressed in a way that cannot be undone here": 1}
    assert len(manifest(tmp_path / "out")) == 20
    with pytest.raises(DataError, match="bad cannot be read as DICOM"):
        do_import(tmp_path, root, table, "other")


def test_a_folder_that_cannot_be_made(archive, tmp_path):
    root, rows = archive
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "images").touch()
    with pytest.raises(DataError, match="images cannot be made"):
        do_import(tmp_path, root, labels(tmp_path, [(file, label) for file, _, label in rows]))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("label",), (0,)], "needs a column file or sop_instance_uid"),
        ([("file", "label"), ("MRN0000/eyeL.dcm", 0), ("", 1)], "row 3: file is empty"),
        ([("file", "label"), ("a.dcm", 0), ("a.dcm", 1)], "row 3: a.dcm has the label '0' already"),
        ([("file", "grade"), ("a.dcm", 0)], "expected the columns 'label'"),
        ([("file", "label"), ("MRN0000/eyeL.dcm", 0)], "the order of the labels"),
    ],
)
def test_a_table_that_cannot_be_used(archive, tmp_path, rows, words):
    path = tmp_path / "labels.csv"
    with open(path, "w", newline="") as handle:
        csv.writer(handle).writerows(rows)
    with pytest.raises(DataError, match=words):
        do_import(tmp_path, archive[0], path)


def test_no_table_and_nothing_to_import(archive, tmp_path):
    with pytest.raises(SettingsError, match="--labels"):
        import_set("dicom", archive[0], tmp_path / "out", ImportSettings())
    write_as(tmp_path / "octs" / "a.dcm", Modality="OPT")
    with pytest.raises(DataError, match=r"none of the 1 DICOM files .* \(1: its modality is OPT, expected OP\)"):
        do_import(tmp_path, tmp_path / "octs", labels(tmp_path, [("a.dcm", 0)]))


def test_the_record_is_json_without_names(archive, tmp_path):
    root, rows = archive
    do_import(tmp_path, root, labels(tmp_path, [(file, label) for file, _, label in rows]))
    text = (tmp_path / "out" / "import.json").read_text()
    assert json.loads(text)["reader"] == "dicom"
    assert str(tmp_path) not in text
