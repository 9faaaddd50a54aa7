import pytest

from fedretina.errors import RefusedError
from fedretina.exchange.stamp import Stamp, require_name

STAMP = Stamp("run", "train", 3, 0, "d" * 64)


def test_equal_stamps_pass():
    STAMP.require(Stamp("run", "train", 3, 0, "d" * 64))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"run": "other"}, "belongs to run 'other'"),
        ({"digest": "e" * 64}, "disagree on settings"),
        ({"phase": "tune"}, "is for tune round 3"),
        ({"round": 2}, "round 2 attempt 0, expected train round 3"),
        ({"attempt": 1}, "attempt 1"),
    ],
)
def test_each_field_is_refused_by_name(changed, said):
    with pytest.raises(RefusedError, match=said):
        STAMP._replace(**changed).require(STAMP)


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a\\b", "a b", "x" * 101, "\x00"])
def test_names_that_could_leave_their_folder_are_refused(name):
    with pytest.raises(RefusedError, match="not a plain name"):
        require_name(name, "run")


def test_plain_names_pass():
    assert require_name("feduaa-20260101_1.x", "run") == "feduaa-20260101_1.x"
