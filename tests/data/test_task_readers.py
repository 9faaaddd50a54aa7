"""Readers of Fed-ISIC2019, PhysioNet 2016 and PAMAP2 over small trees in their layouts, and over real files."""

import csv
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner

import public_sets as sets
from fedretina.cli import main
from fedretina.data.import_plan import plan_import
from fedretina.data.readers import reader
from fedretina.data.readers.pamap2 import _parts
from fedretina.data.readers.survey import ImportSettings
from fedretina.data.wav import read_wave, wave_bytes
from fedretina.errors import DataError, SettingsError
from printed import shown


def look(name, root, **words):
    return reader(name).survey(root, ImportSettings.of(**words), root / "out")


def plan(name, root, **words):
    (root / "out").mkdir(exist_ok=True)
    return plan_import(name, root, root / "out", ImportSettings.of(copies="keep", **words))


def isic(root, rows, lesions=None, draw=None):
    """`rows` holds (name, target, centre, fold); images are empty files unless `draw` draws the one of a number."""
    sets.table(
        root / "train_test_split",
        ("image", "target", "center", "fold", "fold2"),
        *((*row, f"{row[3]}_{row[2]}") for row in rows),
    )
    for number, (name, *_) in enumerate(rows):
        path = root / "ISIC_2019_Training_Input" / f"{name}.jpg"
        draw(path, number) if draw else sets.touch(path)
    if lesions is not None:
        sets.table(root / "ISIC_2019_Training_Metadata.csv", ("image", "age_approx", "lesion_id"), *lesions)


def test_isic_centres_diagnoses_and_lesions(tmp_path):
    isic(
        tmp_path,
        [("a", 0, 1, "train"), ("b", 7, 1, "test"), ("c", 1, 4, "train")],
        [("a", 50, "L1"), ("b", 50, ""), ("c", "", "L2")],
    )
    found = look("isic2019", tmp_path, client="1")
    assert [photograph[1:4] for photograph in found.photographs] == [("MEL", "L1", "train"), ("SCC", "b", "test")]
    assert found.photographs[0].file == "ISIC_2019_Training_Input/a.jpg"
    assert found.scheme == "isic8"
    assert not found.warnings
    assert len(look("isic2019", tmp_path).photographs) == 3


def test_isic_tells_sex_and_age_where_a_table_does(tmp_path):
    isic(tmp_path, [(name, 1, 0, "train") for name in "abcd"])
    table = (("a", "55.0", "F", "L1"), ("b", "30", "male", "L2"), ("c", "85", "female", "L2"), ("d", "0", "", "L3"))
    sets.table(tmp_path / "HAM10000_metadata", ("image_id", "age", "sex", "lesion_id"), *table)
    found = look("isic2019", tmp_path).photographs
    assert [(one.beside["sex"], one.beside["age_band"]) for one in found] == [
        ("female", "from_50"),
        *(("", "under_40"), ("", "from_70")),  # a lesion of a man and a woman tells of neither
        ("", ""),
    ]


def many(shared=3):
    rows, lesions = [], []
    for number in range(40):
        for picture in range(2):
            name = f"i{number}_{picture}"
            test = number % 4 == 0 or (number <= shared * 4 and number % 4 == 1 and picture == 1)
            rows.append((name, number % 8, 0, "test" if test else "train"))
            lesions.append((name, 1, f"L{number}"))
    return rows, lesions


def test_isic_splits_by_lesion_unless_asked(tmp_path):
    rows, lesions = many()
    isic(tmp_path, rows, lesions)
    anew = plan("isic2019", tmp_path)
    assert len(anew.rows) == 80
    homes = {row.patient: {other.split for other in anew.rows if other.patient == row.patient} for row in anew.rows}
    assert all(len(home) == 1 for home in homes.values())
    assert anew.warnings[0].startswith("3 of 40 lesions have pictures on both sides")

    official = plan("isic2019", tmp_path, official=True)
    fold = {row[0]: row[3] for row in rows}
    test = {row.file for row in official.rows if row.split == "test"}
    assert test == {f"ISIC_2019_Training_Input/{name}.jpg" for name, part in fold.items() if part == "test"}
    assert len(official.left_out) == 3
    assert len(official.rows) == 77

    published = plan("isic2019", tmp_path, official=True, as_published=True)
    assert len(published.rows) == 80
    assert {row.file for row in published.rows if row.split == "test"} == test
    val = {row.patient for row in published.rows if row.split == "val"}
    assert val
    assert not val & {row.patient for row in published.rows if row.split == "train"}


def test_isic_says_what_is_wrong(tmp_path):
    with pytest.raises(DataError, match="holds no train_test_split"):
        look("isic2019", tmp_path)
    isic(tmp_path, [("a", 0, 1, "train")])
    with pytest.raises(SettingsError, match="0 to 5"):
        look("isic2019", tmp_path, client="6")
    with pytest.raises(DataError, match="no image of centre 2"):
        look("isic2019", tmp_path, client="2")
    assert look("isic2019", tmp_path).warnings[0].startswith("no table names the lesions")
    with pytest.raises(SettingsError, match="give --official"):
        look("isic2019", tmp_path, as_published=True)
    isic(tmp_path, [("a", 0, 1, "val")])
    with pytest.raises(DataError, match="row 2: the fold is 'val'"):
        look("isic2019", tmp_path)


def physionet(root, letter, recordings, rate=2000):
    """`recordings` holds (name, label, seconds)."""
    folder = root / f"training-{letter}"
    folder.mkdir(parents=True)
    (folder / "REFERENCE.csv").write_text("".join(f"{name},{label}\n" for name, label, _ in recordings))
    for name, _, seconds in recordings:
        sound = np.random.default_rng(len(name) + int(seconds)).integers(-9, 9, int(seconds * rate), dtype=np.int16)
        (folder / f"{name}.wav").write_bytes(wave_bytes(rate, sound))


def test_physionet_takes_recordings_as_they_lie(tmp_path):
    physionet(tmp_path, "a", [("a0001", 1, 6), ("a0002", -1, 6)])
    physionet(tmp_path, "e", [("e00001", -1, 6)])
    found = look("physionet2016", tmp_path)
    assert found.photographs[0][:3] == ("training-a/a0001.wav", "1", "a0001")
    assert len(found.photographs) == 3
    assert found.scheme == "heart2"
    assert found.images is None
    assert [photograph.patient for photograph in look("physionet2016", tmp_path, client="e").photographs] == ["e00001"]
    inside = look("physionet2016", tmp_path / "training-a")
    assert [photograph.file for photograph in inside.photographs] == ["a0001.wav", "a0002.wav"]


def test_all_segments_of_a_recording_are_in_one_split(tmp_path):
    physionet(tmp_path, "b", [(f"b{number:04d}", (-1, 1)[number % 2], 11 + number) for number in range(9)])
    made = plan("physionet2016", tmp_path, client="b", segments="all")
    counts = Counter(row.patient for row in made.rows)
    assert counts["b0000"] == 2
    assert counts["b0004"] == 3
    assert all(len({row.split for row in made.rows if row.patient == name}) == 1 for name in counts)
    _, whole = read_wave(tmp_path / "training-b" / "b0000.wav")
    parts = [read_wave(tmp_path / "out" / "segments" / f"b0000-0{number}.wav")[1] for number in range(2)]
    assert np.array_equal(np.concatenate(parts), whole[:20_000])


def test_physionet_says_what_is_wrong(tmp_path):
    with pytest.raises(DataError, match="none of the folders training-a"):
        look("physionet2016", tmp_path)
    physionet(tmp_path, "a", [("a0001", 1, 4), ("a0002", -1, 6)])
    with pytest.raises(SettingsError, match="a to f"):
        look("physionet2016", tmp_path, client="g")
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="shorter than 5 s"):
        look("physionet2016", tmp_path, segments="all", client="a")
    found = look("physionet2016", tmp_path, segments="all", bad_files="skip")
    assert [row.name for row in found.left_out] == ["training-a/a0001.wav"]
    (tmp_path / "training-a" / "REFERENCE.csv").write_text("a0001,0\n")
    with pytest.raises(DataError, match="line 1: expected a recording and -1 or 1"):
        look("physionet2016", tmp_path)


def test_the_page_shows_what_imports_print(tmp_path, monkeypatch):
    """Of 150 drawn pictures, 30 of them of centre 1, and of seven recordings of noise."""
    monkeypatch.chdir(tmp_path)
    rows = [(f"ISIC_{number:07}", (1, 1, 1, 0, 2, 4)[number % 6], number % 5, "train") for number in range(150)]
    isic(tmp_path / "isic", rows, draw=sets.picture)
    seconds = (9, 12, 16, 21, 26, 13, 18)
    recordings = [(f"c{at:04}", (1, -1)[at % 3 > 0], long) for at, long in enumerate(seconds, 1)]
    physionet(tmp_path / "physionet", "c", recordings)
    for words in (
        "isic2019 isic --client 1 --out centre-1",
        "physionet2016 physionet --client c --segments all --out hearts",
    ):
        command = f"fedretina data import {words}"
        assert CliRunner().invoke(main, command.split()[1:]).output == shown("docs/other_modalities.md", command)


def pamap(path, stretches, lost=()):
    """`stretches` holds (activity, samples, value); `lost` rows without the wrist's sensor."""
    rows, time = [], 8.38
    for activity, count, value in stretches:
        table = np.zeros((count, 54))
        table[:, 0] = time + 0.01 * np.arange(count)
        table[:, 1] = activity
        table[:, 4:7] = value + np.arange(count)[:, None] * [0.001, 0, 0]
        time += 0.01 * count
        rows.append(table)
    table = np.concatenate(rows)
    table[list(lost), 3:20] = np.nan
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(path, table, fmt="%.5f")


def test_pamap_cuts_windows_within_a_stretch(tmp_path):
    (tmp_path / "out").mkdir()
    stretches = [(0, 1500, 9), (1, 2500, 1), (24, 1200, 9), (1, 999, 9), (17, 1000, 3)]
    pamap(tmp_path / "Protocol" / "subject101.dat", stretches, lost=[*range(1510, 1520), *range(2600, 2750)])
    found = look("pamap2", tmp_path, client="101")
    assert [photograph[:3] for photograph in found.photographs] == [
        ("101-01-0000.wav", "1", "101-01-000"),
        ("101-17-0000.wav", "17", "101-17-000"),
    ]
    assert [row.reason for row in found.left_out] == ["a tenth of the window is missing"]
    rate, window = read_wave(tmp_path / "out" / "windows" / "101-01-0000.wav")
    assert rate == 100
    assert np.allclose(window[:, 0], 1 + 0.001 * np.arange(1000), atol=1e-5)  # lost samples lie on the line
    assert np.allclose(window[:, 1:], 1)


def test_pamap_splits_in_time_and_shares_no_block(tmp_path):
    pamap(tmp_path / "subject102.dat", [(number, 20_000, number) for number in (1, 2, 3, 4, 12, 13, 16, 17)])
    rows = plan("pamap2", tmp_path, client="102").rows
    assert len(rows) == 160
    for number in (1, 17):
        mine = sorted(row for row in rows if row.file.startswith(f"102-{number:02d}-"))
        assert [row.split for row in mine] == ["train"] * 15 + ["val"] * 3 + ["test"] * 2
        assert len({row.patient for row in mine}) == 7
    assert {len({row.split for row in rows if row.patient == one.patient}) for one in rows} == {1}


@pytest.mark.parametrize("count", [0, 1, 6, 7, 9, 12, 60])
def test_parts_are_in_order_and_none_is_empty_from_three_blocks_on(count):
    parts = _parts(count, (0.7, 0.15, 0.15))
    order = ["train", "val", "test"]
    assert parts == sorted(parts, key=order.index)
    assert len(parts) == count
    assert set(parts) == (set(order) if count >= 7 else {"train"} if count else set())


@pytest.mark.parametrize("fractions", [(0.05, 0.9, 0.05), (0.02, 0.49, 0.49), (0.9, 0.05, 0.05)])
def test_odd_shares_leave_no_split_empty(fractions):
    assert set(_parts(9, fractions)) == {"train", "val", "test"}


def test_pamap_says_what_is_wrong(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match=r"holds no subject101\.dat"):
        look("pamap2", tmp_path)
    pamap(tmp_path / "subject101.dat", [(1, 900, 1)])
    with pytest.raises(SettingsError, match="give --client, one of 101"):
        look("pamap2", tmp_path)
    with pytest.raises(DataError, match="no whole window"):
        look("pamap2", tmp_path, client="101")
    (tmp_path / "subject101.dat").write_text("1 2 3\n")
    with pytest.raises(DataError, match="3 columns, expected 54"):
        look("pamap2", tmp_path, client="101")


def test_options_of_others_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="client means nothing to the reader octdl"):
        plan("octdl", tmp_path, client="1")


@pytest.mark.real
def test_real_isic(shared, tmp_path):
    with open(shared / "native" / "isic2019" / "train_test_split", newline="") as handle:
        rows = {row["image"]: row for row in csv.DictReader(handle)}
    found = reader("isic2019").survey(shared / "native" / "isic2019", ImportSettings(), tmp_path)
    assert len(found.photographs) == len(rows)
    for photograph in found.photographs:
        row = rows[photograph.patient]
        assert float(row[photograph.label]) == 1
        assert photograph.part == row["fold"]
        assert (shared / "native" / "isic2019" / photograph.file).is_file()


@pytest.mark.real
def test_real_heart_sounds(shared, tmp_path):
    root = shared / "native" / "physionet2016"
    made = plan_import("physionet2016", root, tmp_path, ImportSettings(client="c", segments="all"))
    for row in made.rows:
        header = (root / "training-c" / f"{row.patient}.hea").read_text().splitlines()
        assert ("Abnormal" in header[-1]) == (row.label == "1")
        assert int(header[0].split()[3]) // 10_000 == sum(other.patient == row.patient for other in made.rows)
        rate, samples = read_wave(tmp_path / "segments" / row.file)
        assert (rate, samples.shape) == (2000, (10_000, 1))
