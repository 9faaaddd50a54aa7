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
