import pytest
from pydantic import ValidationError

from fedretina.settings.scheme import GradingScheme
from fedretina.settings.site import SiteDataSettings


def test_settings():
    assert SiteDataSettings.model_validate({"scheme": {"grades": ["a", "b"]}}).scheme == GradingScheme(
        grades=("a", "b")
    )
    for bad in ({"limit": {"all": 3}}, {"limit": {"train": 0}}, {"bad_files": "use"}, {"path": "x"}):
        with pytest.raises(ValidationError):
            SiteDataSettings.model_validate(bad)


def test_a_limit_holds_for_its_own_split():
    settings = SiteDataSettings(limit={"train": 3, "pretrain": 5})
    assert [settings.most(split) for split in ("train", "val", "pretrain")] == [3, None, 5]
    assert SiteDataSettings().most("train") is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            {"manifest": "m.csv", "phantom_images": 40},
            "phantom_images is for a phantom hospital, and a manifest is",
        ),
        ({"images": "i"}, "images can only be used with a manifest: name the manifest"),
        ({"bad_files": "refuse", "cache": "c"}, "cache and bad_files can only be used with a manifest"),
        ({"changes": "accept"}, "changes can only be used with a manifest"),
    ],
)
def test_what_a_phantom_hospital_or_a_real_one_does_not_read_is_refused(words, said):
    with pytest.raises(ValidationError, match=said):
        SiteDataSettings.model_validate(words)
