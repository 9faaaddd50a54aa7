import pytest

from fedretina.errors import SettingsError
from fedretina.settings.images import ImageSettings
from fedretina.settings.scheme import GradingScheme, preset
from fedretina.settings.scheme_presets import SCHEMES, presets_of


def test_a_scheme_survives_json():
    for name in SCHEMES:
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


def test_each_modality_has_schemes():
    assert [name for kind in ImageSettings.choices() for name in presets_of(kind)] == list(SCHEMES)
    assert all(scheme.source for scheme in SCHEMES.values())


def test_oct_presets_read_the_public_spellings():
    assert [preset("oct4").index(raw) for raw in ("NORMAL", "DRUSEN", "DME", "CNV")] == [0, 1, 2, 3]
    assert [preset("oct3").index(raw) for raw in ("NORMAL", "AMD", "DRUSEN", "CNV", "DME")] == [0, 1, 1, 1, 2]
    assert [preset("octdl7").index(raw) for raw in ("NO", "AMD", "DME", "ERM", "RVO", "VID", "RAO")] == list(range(7))
    assert [preset("octid").index(raw) for raw in ("NORMAL", "AMRD", "CSR", "DR", "MH")] == list(range(5))
    assert preset("duke3").covers == {"amd": ("drusen",)}


# Fingerprints of data hold this text.
def test_the_labels_of_skin_stand_in_the_order_in_which_they_were_stored():
    names = ("mel", "nv", "bcc", "ak", "bkl", "df", "vasc", "scc")
    found = preset("isic8").model_dump(mode="json")
    assert list(found["labels"]) == [*map(str, range(8)), *(word for name in names for word in (name, name.upper()))]
    assert found["referable"] == ["mel", "bcc", "ak", "scc"]
    assert "covers" not in found
