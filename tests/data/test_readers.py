from pathlib import Path

import pytest

from fedretina.data.readers import READERS, RawRow, reader
from fedretina.errors import DataError, SettingsError

NATIVE = Path(__file__).parents[2].parent / "shared" / "data" / "native"


def aptos(root, grades):
    (root / "train_images").mkdir(parents=True)
    (root / "train.csv").write_text(
        "id_code,diagnosis\r\n" + "".join(f"i{k:03},{g}\r\n" for k, g in enumerate(grades)), newline=""
    )
    for k in range(len(grades)):
        (root / "train_images" / f"i{k:03}.png").touch()


def idrid(root, train, test):
    part = root / "B. Disease Grading"
    header = "Image name,Retinopathy grade,Risk of macular edema "
    for folder, labels, grades, tail in (
        ("a. Training Set", "a. IDRiD_Disease Grading_Training Labels.csv", train, ",,,,"),
        ("b. Testing Set", "b. IDRiD_Disease Grading_Testing Labels.csv", test, ""),
    ):
        images = part / "1. Original Images" / folder
        images.mkdir(parents=True)
        (part / "2. Groundtruths").mkdir(exist_ok=True)
        rows = "".join(f"IDRiD_{k:03},{g},0{tail}\n" for k, g in enumerate(grades))
        (part / "2. Groundtruths" / labels).write_text(f"{header}{tail}\n{rows}{tail and ',,,,,,'}\n")
        for k in range(len(grades)):
            (images / f"IDRiD_{k:03}.jpg").touch()
    return part


def test_every_reader_is_found():
    assert all(callable(reader(name)) for name in READERS)
    with pytest.raises(SettingsError, match="aptos2019"):
        reader("aptos")


def test_aptos(tmp_path):
    aptos(tmp_path, [0, 1, 2, 3, 4] * 20)
    rows = reader("aptos2019")(tmp_path, 1)
    assert len(rows) == 100
    assert rows[7] == RawRow("train_images/i007.png", "2", "i007", rows[7].split)
    assert [sum(row.split == split for row in rows) for split in ("train", "val", "test")] == [70, 15, 15]
    assert rows == reader("aptos2019")(tmp_path, 1)
    assert rows != reader("aptos2019")(tmp_path, 2)


def test_missing_images_are_named_up_to_five(tmp_path):
    aptos(tmp_path, [0, 1] * 10)
    for k in range(7):
        (tmp_path / "train_images" / f"i{k:03}.png").unlink()
    with pytest.raises(DataError, match="7 of 20") as error:
        reader("aptos2019")(tmp_path, 1)
    assert "i004.png and 2 more" in str(error.value)
    assert "i005" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,diagnosis\na,0\n", "id_code"),
        ("id_code,diagnosis\n", "no image"),
        ("id_code,diagnosis\ni000,\n", "row 2"),
        ("id_code,diagnosis\ni000,9\n", "'9'"),
    ],
)
def test_a_damaged_label_file(tmp_path, text, words):
    aptos(tmp_path, [0])
    (tmp_path / "train.csv").write_text(text)
    with pytest.raises(DataError, match=words):
        reader("aptos2019")(tmp_path, 1)


def test_idrid_keeps_its_test_split_and_parts_its_names(tmp_path):
    part = idrid(tmp_path, [0, 1, 2, 3, 4] * 8, [0, 2, 4])
    rows = reader("idrid")(tmp_path, 1, (0.6, 0.2, 0.2))
    train = [row for row in rows if "Training" in row.file]
    test = [row for row in rows if "Testing" in row.file]
    assert {row.split for row in test} == {"test"}
    assert [sum(row.split == split for row in train) for split in ("train", "val", "test")] == [30, 10, 0]
    assert len({row.patient for row in rows}) == len(rows) == 43
    assert all((tmp_path / row.file).is_file() for row in rows)
    inner = reader("idrid")(part, 1, (0.6, 0.2, 0.2))
    assert [row[1:] for row in inner] == [row[1:] for row in rows]


def test_no_set_at_all(tmp_path):
    for name in READERS:
        with pytest.raises(DataError, match="unpack"):
            reader(name)(tmp_path, 1)


@pytest.mark.real
@pytest.mark.skipif(not NATIVE.is_dir(), reason="the native layouts are not here")
def test_native_layouts():
    rows = reader("aptos2019")(NATIVE / "aptos2019", 1)
    assert len(rows) == 12
    # The copy here holds few of IDRiD's images but its whole label list.
    with pytest.raises(DataError, match="of 516 labelled images are missing"):
        reader("idrid")(NATIVE / "idrid", 1)
