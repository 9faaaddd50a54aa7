"""OCT volumes: the table and the choices without eyepy, and .vol files of its own format where it is installed."""

import csv
import struct
import sys

import cv2
import numpy as np
import pytest

import public_sets as sets
from fedretina.data.readers.oct_volumes import Listed, Volume, read_list, survey, unusable, volume_files
from fedretina.data.readers.survey import ImportSettings
from fedretina.data.site_import import import_set
from fedretina.errors import DataError, SettingsError

SCANS = [np.full((40, 32), 10 * at, np.uint8) for at in range(3)]


def write_vol(path, patient, pid=0, scans=3, level=0.2):
    """A .vol file: a header of 2048 bytes, a localizer, and scans with a header each, each brighter than the last."""
    head = struct.pack(
        "<12sIII3dII2dId4sQiI16s16sI24sdI24sdIIII34s1790x",
        *(b"HSF-OCT-103", 32, scans, 40, 0.01, 0.1, 0.004, 8, 8, 0.01, 0.01, 30, 0.0, b"OD", 132223104000000000),
        *(3, 512, b"1", b"", pid, patient.encode(), 0.0, 0, b"", 0.0, 0, 0, 0, 0, b""),
    )
    assert len(head) == 2048
    parts = [head, bytes(64)]
    for at in range(scans):
        parts.append(struct.pack("<12sI4dIIfI6f168x256x", b"HSF-BS-103", 512, *[0.0] * 4, 0, 256, 20.0, 0, *[0.0] * 6))
        parts.append(np.full((40, 32), level + 0.1 * at, np.float32).tobytes())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(parts))


def table(folder, *rows, columns=("file", "label", "patient", "scan")):
    sets.table(folder / "table.csv", columns, *rows)
    return folder / "table.csv"


def test_the_table(tmp_path):
    path = table(tmp_path, ("a.vol", "dme", "p1", ""), ("b.vol", "dme", "", 2), ("b.vol", "normal", "", 3))
    listed = read_list(path)
    assert listed["a.vol"] == Listed("p1", "dme", {})
    assert [listed["a.vol"].label_of(number) for number in (1, 9)] == ["dme", "dme"]
    assert [listed["b.vol"].label_of(number) for number in (1, 2, 3)] == ["", "dme", "normal"]
    assert read_list(table(tmp_path, ("a.vol", "p1"), columns=("file", "patient")))["a.vol"].label == ""


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("a", "dme", "", "x")], "scan is 'x'"),
        ([("a", "dme", "", "0")], "scan is '0'"),
        ([("a", "dme", "", ""), ("a", "cnv", "", "")], "described otherwise"),
        ([("a", "dme", "p", ""), ("a", "dme", "q", "")], "described otherwise"),
        ([("a", "dme", "", "1"), ("a", "cnv", "", "1")], "described otherwise"),
        ([("a", "dme", "", ""), ("a", "cnv", "", "1")], "described otherwise"),
        ([("a", "dme", "", "1"), ("a", "cnv", "", "")], "described otherwise"),
    ],
)
def test_a_table_that_cannot_be_used(tmp_path, rows, words):
    with pytest.raises(DataError, match=words):
        read_list(table(tmp_path, *rows))


def test_which_files_and_why_not(tmp_path):
    for name in ("a.vol", "d/B.E2E", "d/c.txt", ".hidden/x.vol", "out/images/y.vol"):
        sets.touch(tmp_path / name)
    assert volume_files(tmp_path, tmp_path / "out") == ["a.vol", "d/B.E2E"]
    nobody, someone = Volume("", "OD", SCANS), Volume("p", "OD", SCANS)
    assert unusable([nobody], Listed("p", "", {})) == unusable([someone], Listed("", "", {})) == ""
    assert "names no patient" in unusable([nobody], Listed("", "dme", {}))
    assert "damaged" in unusable([], Listed("p", "", {}))


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    with pytest.raises(SettingsError, match="--unlabelled train"):
        survey(tmp_path, ImportSettings(), tmp_path / "out")
    monkeypatch.setitem(sys.modules, "eyepy", None)
    with pytest.raises(SettingsError, match=r"pip install \"eyepy>=0\.21\""):
        survey(tmp_path, ImportSettings(unlabelled="train"), tmp_path / "out")


def test_volumes_become_scans(tmp_path):
    pytest.importorskip("eyepy")
    for at in range(6):
        name = f"MRN-{at}" if at < 5 else "mrn- 4"  # one patient, in another spelling
        write_vol(tmp_path / "scans" / f"{at}.vol", name, scans=3, level=0.1 + 0.013 * at)
    write_vol(tmp_path / "scans" / "6.vol", "unknown", level=0.5)
    write_vol(tmp_path / "scans" / "7.vol", "unknown", pid=7, level=0.6)
    (tmp_path / "scans" / "8.vol").write_bytes(b"HSF-OCT-103 and no more")
    rows = [(f"{at}.vol", "normal" if at % 2 else "dme", "", "") for at in range(6)]
    settings = ImportSettings(labels=table(tmp_path, *rows), grades=("normal", "dme"), bad_files="skip")
    out = tmp_path / "out"
    record = import_set("oct_volumes", tmp_path / "scans", out, settings)
    assert sum(sum(counts.values()) for counts in record["images"].values()) == 18
    assert record["patients_hashed"]
    assert record["left_out"]["it names no patient, so it cannot be kept on one side of a split"] == 1
    assert record["left_out"]["the table has no label for it"] == 3
    text = (out / "manifest.csv").read_text() + (out / "scans.csv").read_text()
    assert "mrn" not in text.lower()
    assert any("1 names of patients differ from another" in sentence for sentence in record["warnings"])
    with open(out / "manifest.csv") as handle:
        listed = list(csv.DictReader(handle))
    assert len({row["patient"] for row in listed}) == 5
    levels = {float(cv2.imread(str(out / "images" / row["file"]), cv2.IMREAD_UNCHANGED).mean()) for row in listed}
    assert len(levels) == 18

    more = import_set("oct_volumes", tmp_path / "scans", out, settings.model_copy(update={"unlabelled": "train"}), True)
    assert more["unlabelled"] == 3
    with pytest.raises(DataError, match=r"8\.vol cannot be read"):
        import_set(
            "oct_volumes", tmp_path / "scans", tmp_path / "o", settings.model_copy(update={"bad_files": "refuse"})
        )
