import pytest

from fedretina.errors import RefusedError
from fedretina.exchange.payload import Stamp
from fedretina.storage import require_name
from fedretina.told import one_line
from printed import sentence

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


def test_the_page_quotes_the_refusal():
    with pytest.raises(RefusedError) as refusal:
        STAMP.require(STAMP._replace(digest="e" * 64))
    said = str(refusal.value).replace("d" * 12, "...").replace("e" * 12, "...")
    assert said == sentence("docs/one_round.md", "the two ends")


def test_a_stamp_of_a_million_letters_is_refused_in_a_line():
    for changed in ({"run": "r" * 1_000_000}, {"phase": "p\n" * 1_000_000}, {"digest": "e" * 1_000_000}):
        with pytest.raises(RefusedError) as refusal:
            STAMP._replace(**changed).require(STAMP)
        assert len(str(refusal.value)) < 500
        assert str(refusal.value).isprintable()


def test_one_line_is_printable_and_short_and_keeps_what_is_so_already():
    assert one_line("Überlänge: 3 Bilder fehlen.") == "Überlänge: 3 Bilder fehlen."
    assert one_line("a\nb\x1b[31m\u2028c") == "a b [31m c"
    assert one_line("x" * 500) == "x" * 500
    assert one_line("x" * 501) == "x" * 497 + "..."


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a\\b", "a b", "x" * 101, "\x00"])
def test_names_that_could_leave_their_folder_are_refused(name):
    with pytest.raises(RefusedError, match="not a plain name"):
        require_name(name, "run")


def test_plain_names_pass():
    assert require_name("feduaa-20260101_1.x", "run") == "feduaa-20260101_1.x"
