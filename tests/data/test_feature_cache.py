"""What frozen stages gave, kept on disk: what is read, what is noticed as stale, what a kill or a full disk leaves."""

from __future__ import annotations

import json
import logging
import os

import numpy as np
import pytest

from fedretina.data import feature_cache
from fedretina.data.feature_cache import FeatureCache, FeaturePlace

WIDTH, KEY = 3, {"weights": "a"}
IMAGES = [("a", 0), ("b", 0), ("c", 0)]


class Stages:
    """Gives rows of made-up numbers and remembers of which images."""

    def __init__(self, wanted, fails_after=None):
        self.wanted, self.asked, self.fails_after = wanted, [], fails_after

    def __call__(self, places):
        if self.fails_after is not None and len(self.asked) >= self.fails_after:
            raise KeyboardInterrupt
        names = [self.wanted[at] for at in places]
        self.asked += names
        return np.array([row_of(name) for name in names], np.float16)


def row_of(name):
    return [ord(name[0]), name[1], 0.5]


def place(folder, images="one", listed=None, most=10**6):
    return FeaturePlace(folder / "features", images, listed, most)


def read(where, wanted=tuple(IMAGES), key=KEY, fails_after=None):
    """Rows through a cache that is opened anew, and of which images they were computed."""
    stages = Stages(wanted, fails_after)
    found = FeatureCache(where, key, WIDTH).rows(wanted, stages)
    if found is None:
        return None, stages.asked
    rows, places = found
    assert np.array_equal(rows[places], np.array([row_of(name) for name in wanted], np.float16))
    return rows, stages.asked


def folders(where):
    return {path.name for path in where.folder.iterdir() if list(path.glob("rows-*"))}


def test_rows_are_computed_once_and_more_are_appended(tmp_path):
    where = place(tmp_path)
    assert read(where)[1] == IMAGES
    assert read(where)[1] == []
    assert read(where, [("b", 4), ("a", 0), ("d", 0)])[1] == [("b", 4), ("d", 0)]
    assert read(where, [*IMAGES, ("b", 4)])[1] == []
    assert len(folders(where)) == 1
    assert (where.folder / next(iter(folders(where)))).stat().st_mode & 0o077 == 0  # for its owner alone


def test_images_that_are_equal_share_a_row(tmp_path):
    where = place(tmp_path)
    rows, asked = read(where, [("a", 0), ("a", 0), ("b", 0), ("a", 0)])
    assert len(rows) == len(asked) == 2
    assert read(where, [("c", 0), ("a", 0)])[1] == [("c", 0)]


def test_other_weights_and_other_lists_of_images_are_other_rows(tmp_path):
    where = place(tmp_path)
    read(where)
    assert read(where, key={"weights": "b"})[1] == IMAGES
    assert read(place(tmp_path, images="two"))[1] == IMAGES
    assert len(folders(where)) == 3


def test_rows_of_images_that_are_no_longer_listed_are_removed(tmp_path):
    read(place(tmp_path, listed=frozenset("abc")))
    where = place(tmp_path, listed=frozenset("acd"))
    assert read(where, [("a", 0), ("c", 0)])[1] == []  # nothing is written where nothing is computed
    rows, asked = read(where, [("a", 0), ("d", 0)])
    assert asked == [("d", 0)]
    assert len(rows) == 3  # a, c and d, without b
    assert read(where, [("a", 0), ("c", 0), ("d", 0)])[1] == []
    folder = where.folder / next(iter(folders(where)))
    assert len(list(folder.glob("rows-*"))) == 1


@pytest.mark.attack("an accident", "a file of the cache of frozen outputs is cut off or damaged", "it is computed anew")
@pytest.mark.parametrize("harm", ["cut", "index", "names", "gone"])
def test_a_damaged_cache_is_computed_anew(tmp_path, harm):
    where = place(tmp_path)
    read(where)
    folder = where.folder / next(iter(folders(where)))
    rows, index = next(folder.glob("rows-*")), folder / "index.json"
    if harm == "cut":
        os.truncate(rows, 2 * WIDTH)
    elif harm == "gone":
        rows.unlink()
    else:
        words = json.loads(index.read_text())
        index.write_text("{" if harm == "index" else json.dumps({**words, "rows": [1, 2, 3]}))
    assert read(where)[1] == IMAGES
    assert read(where)[1] == []


@pytest.mark.attack(
    "an accident", "a site is killed while it fills the cache of frozen outputs", "nothing noted is lost"
)
def test_a_kill_loses_what_was_not_noted_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_cache, "_TOGETHER", 1)
    monkeypatch.setattr(feature_cache, "_NOTED", 2 * 2 * WIDTH)  # the index is written after each second row
    where, names = place(tmp_path), [(name, 0) for name in "abcdef"]
    with pytest.raises(KeyboardInterrupt):
        read(where, names, fails_after=5)
    assert read(where, names)[1] == [("e", 0), ("f", 0)]


def test_what_does_not_fit_is_not_kept_and_the_log_says_so_once(tmp_path, caplog):
    where = place(tmp_path, most=2 * 2 * WIDTH)
    cache = FeatureCache(where, KEY, WIDTH)
    caplog.set_level(logging.INFO)
    for _ in range(2):
        assert cache.rows(IMAGES, Stages(IMAGES)) is None
    assert len(caplog.records) == 1
    assert "3 of 3 outputs of frozen stages, 6 bytes each, are not kept" in caplog.text
    assert "data.feature_cache_gb" in caplog.text
    assert cache.rows(IMAGES[:2], Stages(IMAGES[:2])) is not None
    assert "2 of 2 outputs of frozen stages, 6 bytes each, are computed and kept" in caplog.text


def test_what_was_not_read_for_longest_makes_room(tmp_path):
    where = place(tmp_path, most=7 * 2 * WIDTH)
    for key in "ab":
        read(where, key={"weights": key})
    for number, folder in enumerate(sorted(where.folder.iterdir())):
        os.utime(folder / "index.json", (number, number))
    stale = sorted(where.folder.iterdir())[0].name
    assert read(where, key={"weights": "c"})[1] == IMAGES
    assert stale not in folders(where)
    assert len(folders(where)) == 2


@pytest.mark.attack(
    "an accident", "the disk of the cache of frozen outputs cannot be written", "the run goes on without"
)
def test_a_folder_that_cannot_be_used_is_no_fault(tmp_path, caplog):
    (tmp_path / "features").write_text("a file stands where the folder should")
    rows, asked = read(place(tmp_path))
    assert rows is None
    assert asked == []
    assert "they are computed anew each time" in caplog.text
