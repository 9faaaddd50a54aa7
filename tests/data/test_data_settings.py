import pytest
import yaml

from fedretina.errors import DataError
from fedretina.settings.site import read_data_settings, read_site_file, read_site_settings, shares_named_root


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
    assert read_data_settings(path, "north") == flare


def test_a_site_without_data(tmp_path):
    assert read_data_settings(write(tmp_path, {"state_root": "runs"})).manifest is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "holds no settings"),
        ("- a\n", "holds no settings"),
        ("data: here\n", "holds no settings"),
        ("data: [\n", "cannot be read"),
        ("data: []\n", "holds no settings of its data"),
        ("data: 0\n", "holds no settings of its data"),
        ("data: false\n", "holds no settings of its data"),
        ("data: ''\n", "holds no settings of its data"),
        ("data:\n  manifest: m.csv\n  cache: false\n", r"data\.cache of the site file .* is False: write a path"),
        ("data:\n  manifest: [a]\n", r"data\.manifest of .* is \['a'\]: write a path"),
        ("data:\n  manifest: ~/m.csv\n", r"'~/m\.csv', and ~ stands for no folder there"),
        ("state_root: true\n", "state_root of the site file .* is True: write a path"),
        ("state_root: ''\n", "state_root of the site file .* is '': write a path"),
        ("data:\n  scheme: icdr5\n  scheme: oct3\n", "'scheme' is set twice, in lines 2 and 3"),
        ({"data": {}, "images": "x"}, r"images is no setting: did you mean data\.images\?"),
        ({"data": {"manifst": "x"}}, r"data\.manifst is no setting: did you mean manifest\?"),
        ({"data": {"scheme": {"grads": ["a", "b"]}}}, r"data\.scheme\.grads is no setting: did you mean grades\?"),
        ({"data": {"limit": {"trian": 3}}}, r"data\.limit\.trian: Input should be 'train', 'val'"),
        ({"policy": {"kind": ["head"]}}, r"policy\.kind is no setting: did you mean kinds\?"),
        ({"data": {"bad_files": "maybe"}}, "data.bad_files"),
        ({"data": {"manifest": "{SITE_NAME}.csv"}}, "--site"),
    ],
)
def test_a_bad_one_says_what_is_wrong(tmp_path, words, says):
    with pytest.raises(DataError, match=says):
        read_data_settings(write(tmp_path, words))


def test_a_path_that_is_set_to_nothing_is_not_set(tmp_path):
    settings = read_site_file(write(tmp_path, "data:\n  manifest: m.csv\n  cache:\nstate_root:\n"), "north")
    assert (settings.data.cache, settings.state_root) == (None, None)
    assert read_data_settings(write(tmp_path, "data:\n")).manifest is None


@pytest.mark.parametrize("named", [True, ["site.yaml"], "~/site.yaml"])
def test_a_site_file_is_named_by_a_path(tmp_path, named):
    with pytest.raises(DataError, match="the site file of north is"):
        read_site_settings({"fedretina": {"site_file": named}}, "north", tmp_path)


@pytest.mark.parametrize("beside", ["aproval", "policy"])
def test_what_is_not_read_beside_the_site_file_is_refused(tmp_path, beside):
    path = write(tmp_path, {"state_root": "runs"})
    with pytest.raises(DataError, match=f"{beside} stands beside the site file of north, where only approval is read"):
        read_site_settings({"fedretina": {"site_file": str(path), beside: "required"}}, "north", tmp_path)


def test_a_state_root_is_one_sites_alone_where_its_kit_names_the_site_file(tmp_path, monkeypatch):
    path = tmp_path / "site.yaml"
    path.write_text("state_root: runs\n")
    kit = {"fedretina": {"site_file": str(path)}}
    assert not shares_named_root(read_site_settings(kit, "site-1", tmp_path), kit)
    assert not shares_named_root(read_site_settings({}, "site-1", tmp_path), {})
    monkeypatch.setenv("FEDRETINA_SITE_FILE", str(path))
    assert shares_named_root(read_site_settings({}, "site-1", tmp_path), {})


def test_missing_and_no_text(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_data_settings(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00data")
    with pytest.raises(DataError, match="cannot be read"):
        read_data_settings(tmp_path / "bytes.yaml")


def test_flare_and_the_data_check_tell_of_the_same_faults(tmp_path):
    (tmp_path / "site.yaml").write_bytes("# Geräte der Küche\ndata:\n  scheme: icdr5\n".encode("latin-1"))
    for read in (
        lambda: read_data_settings(tmp_path / "site.yaml"),
        lambda: read_site_settings({"fedretina": {"site_file": "site.yaml"}}, "north", tmp_path),
    ):
        with pytest.raises(DataError, match=r"site\.yaml cannot be read: line 1 holds a character that is not UTF-8"):
            read()
