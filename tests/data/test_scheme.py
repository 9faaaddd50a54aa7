import pytest
from pydantic import ValidationError

from fedretina.data.scheme import GradingScheme, preset
from fedretina.errors import DataError, SettingsError


def test_default_labels_are_numbers_and_names():
    scheme = GradingScheme(grades=("a", "b", "c"))
    assert [scheme.index(raw) for raw in ("0", 1, " 2 ", "a", "c")] == [0, 1, 2, 0, 2]
    assert scheme.num_classes == 3


def test_a_scheme_survives_json():
    for name in ("icdr5", "icdr5_ungradable", "normal_3stages"):
        scheme = preset(name)
        assert GradingScheme.model_validate_json(scheme.model_dump_json()) == scheme


def test_presets():
    assert [preset(name).num_classes for name in ("icdr5", "icdr5_ungradable", "normal_3stages")] == [5, 6, 4]
    assert preset("icdr5_ungradable").index(5) == 5
    assert preset("icdr5_ungradable").ungradable == "ungradable"
    assert preset("icdr5").ungradable is None
    assert [preset("normal_3stages").index(raw) for raw in range(5)] == [0, 1, 2, 3, 3]
    with pytest.raises(SettingsError, match="icdr5"):
        preset("icdr9")


@pytest.mark.parametrize("raw", ["5", -1, "", "2.0", "moderate DR"])
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
