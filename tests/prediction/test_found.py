"""What a folder is seen to hold."""

from __future__ import annotations

import os

import pytest

from fedretina.errors import DataError
from fedretina.prediction.eyes import by_name
from fedretina.prediction.photographs import find_photographs


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def test_photographs_in_order_and_the_rest_counted(tmp_path):
    touch(tmp_path, "b.JPG", "a.png", "sub/deep/c.tiff", "scan.dcm", "two.dcm", "README", ".hidden.jpg", ".git/x.png")
    found = find_photographs(tmp_path)
    assert found.files == ("a.png", "b.JPG", "sub/deep/c.tiff")
    assert found.left_out == {".dcm": 2, "no ending": 1}


def test_an_empty_folder(tmp_path):
    assert find_photographs(tmp_path) == ((), {}, {}, {})


def test_broken_links_are_listed_and_pipes_are_not(tmp_path):
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    found = find_photographs(tmp_path)
    assert found.files == ("gone.jpg",)
    assert found.left_out == {".jpg": 1}


def test_a_link_to_a_folder_is_counted_and_not_followed(tmp_path):
    touch(tmp_path, "in/a.jpg", "out/b.jpg")
    (tmp_path / "in" / "ring").symlink_to(tmp_path / "in")
    found = find_photographs(tmp_path / "in")
    assert found.files == ("a.jpg",)
    assert found.left_out == {"linked folder": 1}


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be listed"):
        find_photographs(tmp_path / "none")


@pytest.mark.real
def test_a_public_set_with_both_eyes_is_found_and_joined_whole(shared):
    files = find_photographs(shared / "native" / "eyepacs").files
    owners = by_name(files).owners
    assert len(files) >= 2
    assert len({owner.patient for owner in owners}) == len(files) // 2
    assert {owner.eye for owner in owners} == {"left", "right"}
