import io

import numpy as np
import pytest
from PIL import Image as Picture

from fedretina.data.check.contact_sheet import SIDE, choose_images, contact_sheet, stored_thumbnail
from fedretina.data.check.rows import Image
from fedretina.errors import DataError
from fedretina.settings.images import FundusSettings, OctSettings
from fedretina.settings.scheme import preset
from little_eyes import GRADES, eye, save

SCHEME = preset("icdr5")
FUNDUS = FundusSettings(image_size=48)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sheet")
    for seed in range(16):
        save(folder / f"{seed}.png", eye(seed, 60, 90))
    return folder


def images(count=16, label=0):
    return [Image("", f"{at}.png", label, f"p{at}", ("train", "val", "test", None)[at % 4]) for at in range(count)]


def test_twelve_of_a_grade_by_lot_whatever_the_order(root):
    rows = choose_images(images(), SCHEME, root, FUNDUS)
    again = choose_images(images()[::-1], SCHEME, root, FUNDUS)
    assert [len(row) for row in rows] == [12, 0, 0, 0, 0]
    names = [one.file for one in rows[0]]
    assert names == [one.file for one in again[0]]
    assert names != sorted(names)


def test_stored_keeps_its_shape_and_seen_is_square(root):
    (one,) = choose_images(images(1), SCHEME, root, FUNDUS)[0]
    assert one.stored.shape == (60, 90, 3)
    assert one.seen.shape == (SIDE, SIDE, 3)
    # The network's 48 pixels stand there as they are, each three times as wide.
    assert len(np.unique(one.seen[::3] == one.seen[1::3])) == 1


def test_images_that_cannot_be_read_are_passed_over(root, tmp_path):
    save(tmp_path / "1.png", eye(1, 40))
    (tmp_path / "0.png").write_bytes(b"no image")
    (row, *_) = choose_images(images(3), SCHEME, tmp_path, FUNDUS)
    assert [one.file for one in row] == ["1.png"]
    with pytest.raises(DataError):
        stored_thumbnail(tmp_path / "0.png")


@pytest.mark.parametrize(("width", "height"), [(500, 300), (300, 500), (4, 2), (2000, 3)])
def test_thumbnails_are_never_larger_than_the_side(tmp_path, width, height):
    save(tmp_path / "a.png", np.zeros((height, width, 3), np.uint8))
    found = stored_thumbnail(tmp_path / "a.png").shape
    assert max(found[:2]) <= SIDE
    assert found == (height, width, 3) or max(found[:2]) == SIDE


def test_the_sheet_is_a_picture_and_the_same_each_time(root):
    counts = {split: [4, 4, 4, 4, 0] for split in ("train", "val", "test")}
    rows = choose_images([*images(13), *images(16, 3)[14:]], SCHEME, root, FUNDUS)
    first, again = (contact_sheet("north", rows, SCHEME.grades, counts, 48, False) for _ in range(2))
    assert first == again
    assert first != contact_sheet("north", rows, SCHEME.grades, counts, 48, True)
    picture = np.asarray(Picture.open(io.BytesIO(first)))
    # The first image of the fourth grade stands as stored, in its frame.
    stored = rows[3][0].stored
    places = [
        (y, x)
        for y in range(picture.shape[0] - 60)
        for x in (196 + (SIDE - 90) // 2,)
        if np.array_equal(picture[y : y + 60, x : x + 90], stored)
    ]
    assert len(places) == 1


def test_a_site_without_images_and_with_long_names_still_has_a_sheet():
    scheme = SCHEME.model_copy(update={"grades": (*GRADES[:4], "пролиферативная ретинопатия, очень длинно")})
    sheet = contact_sheet("north", [[] for _ in GRADES], scheme.grades, {"train": [0] * 5}, 48, False)
    assert Picture.open(io.BytesIO(sheet)).format == "PNG"


def test_images_without_a_label_make_a_last_row_and_scans_are_seen_as_scans(root):
    without = [image._replace(label=None, split="train", unlabelled=True) for image in images(2, None)]
    rows = choose_images([*images(3, 1), *without], preset("oct4"), root, OctSettings(image_size=48))
    assert [len(row) for row in rows] == [0, 3, 0, 0, 2]
    assert all((one.seen[..., 0] == one.seen[..., 2]).all() for one in rows[1])
    counts = {"train": [0, 3, 0, 0]}
    names = (*preset("oct4").grades, "no label")
    sheets = [contact_sheet("north", some, names, counts, 48, False) for some in (rows, rows[:4])]
    assert sheets[0] != sheets[1]
    assert choose_images(without, None, root, FUNDUS)[0][0].file in {"0.png", "1.png"}
