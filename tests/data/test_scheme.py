import pytest
from pydantic import ValidationError

from fedretina.errors import DataError
from fedretina.settings.scheme import GradingScheme, preset


def test_default_labels_are_numbers_and_names():
    scheme = GradingScheme(grades=("a", "b", "c"))
    assert [scheme.index(raw) for raw in ("0", 1, " 2 ", "a", "c")] == [0, 1, 2, 0, 2]
    assert scheme.num_classes == 3


def test_whole_numbers_may_be_written_as_spreadsheets_do():
    assert [preset("icdr5").index(raw) for raw in ("2.0", "3,0", "0.00")] == [2, 3, 0]
    assert preset("heart2").index("-1.0") == 0
    assert GradingScheme(grades=("a", "b"), labels={"1": "a", "1.0": "b"}).index("1.0") == 1


@pytest.mark.parametrize("raw", ["5", -1, "", "2.5", "5.0", "2.", "moderate DR"])
def test_a_label_outside_is_named(raw):
    with pytest.raises(DataError, match="not in the grading scheme") as error:
        preset("icdr5").index(raw)
    assert repr(str(raw)) in str(error.value)
    assert "proliferative" in str(error.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"grades": ("a",)}, "at least two"),
        ({"grades": ("a", "a")}, "twice"),
        ({"grades": ("a", " b")}, "blanks"),
        ({"grades": ("a", "b"), "ungradable": "c"}, "ungradable"),
        ({"grades": ("a", "b"), "labels": {"0": "a", "1": "x"}}, "not grades"),
        ({"grades": ("a", "b"), "labels": {"0": "a"}}, "no raw label"),
        ({"grades": ("a", "b"), "extra": 1}, "extra"),
    ],
)
def test_settings_that_cannot_be_used(settings, words):
    with pytest.raises(ValidationError, match=words):
        GradingScheme.model_validate(settings)


def test_a_scheme_is_frozen():
    scheme = preset("icdr5")
    with pytest.raises(ValidationError):
        scheme.grades = ("a", "b")


OCT4 = preset("oct4").grades


@pytest.mark.parametrize(
    ("name", "shared", "expected"),
    [
        ("oct4", OCT4, ((0,), (1,), (2,), (3,))),
        ("oct4", OCT4[::-1], ((3,), (2,), (1,), (0,))),
        ("oct3", OCT4, ((0,), (1, 3), (2,))),
        ("oct3", ("normal", "amd", "dme"), ((0,), (1,), (2,))),
        ("duke3", OCT4, ((0,), (1,), (2,))),
        ("octid", (*OCT4, "csr", "dr", "mh"), ((0,), (1, 3), (4,), (5,), (6,))),
    ],
)
def test_cover(name, shared, expected):
    assert preset(name).cover(shared) == expected


def test_what_cannot_be_covered_is_refused():
    with pytest.raises(DataError, match=r"grade 'csr' stands for \['csr'\]"):
        preset("octid").cover(OCT4)
    with pytest.raises(DataError, match="'drusen'"):
        preset("oct4").cover(("normal", "amd", "dme"))
    typo = GradingScheme(grades=("normal", "amd"), covers={"amd": ("drusen", "cvn")})
    with pytest.raises(DataError, match=r"\['cvn'\]"):
        typo.cover(OCT4)
    both = GradingScheme(grades=("normal", "amd", "drusen"), covers={"amd": ("drusen", "cnv")})
    with pytest.raises(DataError, match="both stand for 'drusen'"):
        both.cover(OCT4)


@pytest.mark.parametrize(
    ("covers", "words"),
    [({"c": ("x",)}, "not grades"), ({"a": ()}, "no class"), ({"a": ("x", "y"), "b": ("y",)}, "more than one grade")],
)
def test_covers_that_cannot_be_used(covers, words):
    with pytest.raises(ValidationError, match=words):
        GradingScheme(grades=("a", "b"), covers=covers)


def test_a_scheme_without_covers_is_stored_as_before():
    # Fingerprints of data hold this text.
    assert GradingScheme(grades=("a", "b")).model_dump_json() == (
        '{"grades":["a","b"],"labels":{"0":"a","1":"b","a":"a","b":"b"},"ungradable":null,"referable":[]}'
    )
    assert preset("oct3").model_dump(mode="json")["covers"] == {"amd": ["drusen", "cnv"]}
