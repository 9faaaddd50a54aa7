import shutil

import pytest

from fedretina.data.import_plan import without_copies, without_repeats
from fedretina.data.readers.survey import LeftOut, Photograph
from fedretina.errors import DataError
from public_sets import picture, touch


def test_rows_that_name_a_file_twice():
    rows = [Photograph("a", "0", "1"), Photograph("b", "1", "2"), Photograph("a", "0", "3"), Photograph("b", "2", "2")]
    kept, left_out = without_repeats(rows)
    assert kept == [rows[0]]
    assert left_out == [
        LeftOut("a", "the list names it twice"),
        LeftOut("b", "the list names it twice, with different labels"),
        LeftOut("b", "the list names it twice, with different labels"),
    ]


def test_files_of_the_same_bytes(tmp_path):
    for number, name in enumerate("abcd"):
        picture(tmp_path / f"{name}.png", number)
    for source, name in ("ax", "ay", "bz"):
        shutil.copy(tmp_path / f"{source}.png", tmp_path / f"{name}.png")
    labels = {"a": "0", "b": "1", "c": "1", "d": "1", "x": "0", "y": "0", "z": "2"}
    rows = [Photograph(f"{name}.png", label, name) for name, label in labels.items()]
    kept, left_out = without_copies(tmp_path, rows)
    assert [row.patient for row in kept] == ["a", "c", "d"]
    assert {(row.name, row.reason) for row in left_out} == {
        ("x.png", "a copy of another image"),
        ("y.png", "a copy of another image"),
        ("b.png", "a copy of another image, with a different label"),
        ("z.png", "a copy of another image, with a different label"),
    }


def test_the_copy_in_the_official_test_part_stays(tmp_path):
    picture(tmp_path / "a.png", 1)
    for name in "bcd":
        shutil.copy(tmp_path / "a.png", tmp_path / f"{name}.png")
    parts = {"a": "train", "b": "test", "c": "val", "d": "test"}
    rows = [Photograph(f"{name}.png", "0", name, part) for name, part in parts.items()]
    assert [row.file for row in without_copies(tmp_path, rows)[0]] == ["b.png"]
    assert [row.file for row in without_copies(tmp_path, rows[:1] + rows[2:3])[0]] == ["c.png"]


def test_files_of_the_same_size_and_empty_files_are_no_copies(tmp_path):
    (tmp_path / "a.png").write_bytes(b"abc")
    (tmp_path / "b.png").write_bytes(b"abd")
    for name in "cd":
        touch(tmp_path / f"{name}.png")
    rows = [Photograph(f"{name}.png", "0", name) for name in "abcd"]
    assert without_copies(tmp_path, rows) == (rows, [])


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"a\.png cannot be read"):
        without_copies(tmp_path, [Photograph("a.png", "0", "a")])
