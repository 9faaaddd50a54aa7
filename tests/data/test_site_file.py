import pytest
import yaml

from fedretina.data.site_file import OTHER_KEYS, read_site_file
from fedretina.errors import DataError
from fedretina.site_settings import SiteSettings, read_site_settings


def write(tmp_path, words):
    path = tmp_path / "site.yaml"
    path.write_text(words if isinstance(words, str) else yaml.safe_dump(words))
    return path


@pytest.mark.parametrize("images", ["images", "/srv/images", "{SITE_NAME}/images"])
def test_it_reads_what_flare_reads(tmp_path, images):
    words = {
        "data": {"manifest": "m.csv", "images": images, "scheme": "icdr5", "cache": "c", "bad_files": "refuse"},
        "state_root": "runs",
    }
    path = write(tmp_path, words)
    flare = read_site_settings({"fedretina": {"site_file": str(path)}}, "north", tmp_path).data
    assert read_site_file(path, "north") == flare


def test_the_keys_are_those_of_flare():
    assert {"data", *OTHER_KEYS} == set(SiteSettings.model_fields)


def test_a_site_without_data(tmp_path):
    assert read_site_file(write(tmp_path, {"state_root": "runs"})).manifest is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "holds no settings"),
        ("- a\n", "holds no settings"),
        ("data: here\n", "holds no settings"),
        ("data: [\n", "cannot be read"),
        ({"data": {}, "images": "x"}, r"\['images'\]"),
        ({"data": {"manifests": "x"}}, "data.manifests"),
        ({"data": {"bad_files": "maybe"}}, "data.bad_files"),
        ({"data": {"manifest": "{SITE_NAME}.csv"}}, "--site"),
    ],
)
def test_a_bad_one_says_what_is_wrong(tmp_path, words, says):
    with pytest.raises(DataError, match=says):
        read_site_file(write(tmp_path, words))


def test_missing_and_no_text(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_site_file(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00data")
    with pytest.raises(DataError, match="cannot be read"):
        read_site_file(tmp_path / "bytes.yaml")
