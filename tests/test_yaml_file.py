"""Settings files that cannot be read: each gets a sentence for home, and one without the file's words for others."""

import math

import pytest
import yaml

from fedretina.errors import SettingsError
from fedretina.yaml_file import MOST_BYTES, YamlFileError, parse_yaml, read_yaml

WHAT = "the experiment file"
BOMB = (
    "a: &a [1,1,1,1,1,1,1,1]\n"
    + "".join(f"{new}: &{new} [{','.join([f'*{old}'] * 8)}]\n" for old, new in zip("abcde", "bcdef", strict=True))
).encode()


def refused(tmp_path, content):
    path = tmp_path / "tell-tale.yaml"
    path.write_bytes(content)
    with pytest.raises(YamlFileError) as caught:
        read_yaml(path, WHAT)
    assert not caught.value.public
    return str(caught.value).replace(f"{WHAT} {path} ", "").replace(f"{WHAT} {path}, ", ""), caught.value.outside


@pytest.mark.parametrize(
    ("content", "home", "outside"),
    [
        ("# Küche\nrow: fedavg\n".encode("latin-1"), "line 1 holds a character that is not UTF-8: save", "line 1"),
        ("row: fedavg\n".encode("utf-16"), "it is saved in UTF-16: save it as UTF-8", "UTF-16"),
        (b"row\0\1\2", "it is no text file", "it is no text file"),
        (b"seed: 1\n\x07: 1\n", "line 2 holds a character that no text has", "line 2"),
        (b"seed: 1\nrow: [\n", "line 3, column 1 is no YAML (expected the node", "line 3, column 1 is no YAML: mend"),
        (b"seed:\n\tsecret: 1\n", "line 2, column 1 is no YAML (found character '\\t'", "indent with blanks, not"),
        (b"row: *secret\n", "line 1, column 6 is no YAML (found undefined alias 'secret')", "line 1, column 6"),
        (b"a: 1\n---\nb: 2\n", "line 2, column 1 is no YAML (but found another document)", "line 2, column 1"),
        (
            b"secret: fedavg\nseed: 1\nsecret: feduaa\n",
            "'secret' is set twice, in lines 1 and 3: keep",
            "lines 1 and 3",
        ),
        (b"a: {secret: 1, secret: 2}\n", "'secret' is set twice, in line 1", "a setting is set twice, in line 1"),
        (b"a: !!int secret\n", "invalid literal for int() with base 10: 'secret'", "a value in it is none: mend it"),
        (b"? [secret]\n: 1\n", "line 1 has a name that is no plain word", "line 1 has a name"),
        (b"", "holds no settings: it is empty", "holds no settings: it is empty"),
        (b"- secret\n", "holds no settings: it holds a list", "holds no settings: it holds a list"),
        (b"secret\n", "holds no settings: it holds a single value", "it holds a single value, where `name: value`"),
    ],
)
def test_a_file_that_cannot_be_read_says_where_and_how_to_mend_it(tmp_path, content, home, outside):
    told, said_outside = refused(tmp_path, content)
    assert home in told
    assert outside in said_outside
    assert said_outside.startswith(WHAT)
    assert "tell-tale" not in said_outside
    assert "secret" not in said_outside


@pytest.mark.attack(
    "a lead", "an experiment file of 9 lines that would fill a site's memory", "it is refused before it is built"
)
@pytest.mark.attack("a lead", "an experiment file with a tag that runs code when it is read", "the tag is refused")
@pytest.mark.parametrize(
    ("content", "home"),
    [
        (b"a: !!python/object/apply:os.system [touch /tmp/x]\n", "line 1 has the tag 'python/object/apply:os.system'"),
        (BOMB, "its aliases stand for too many values"),
        (b"a: &x [*x]\n", "line 1 holds itself, by an alias"),
        (b"a: " + b"[" * 5000, "nested more than"),
        (b"a: " + b"[" * 60 + b"]" * 60, "nested more than"),
        (b"#" * (MOST_BYTES + 1), f"it has more than {MOST_BYTES} bytes"),
    ],
)
def test_a_file_that_is_meant_to_do_harm_is_refused(tmp_path, content, home):
    assert home in refused(tmp_path, content)[0]


def test_what_is_no_file_is_called_so(tmp_path):
    for path, said in (
        (tmp_path, "it is a folder: name the file in it"),
        (tmp_path / "none.yaml", "there is no such file"),
        (tmp_path / "none" / "e.yaml", "there is no such file"),
    ):
        with pytest.raises(SettingsError, match=said) as caught:
            read_yaml(path, WHAT)
        assert str(path) in str(caught.value)
        assert str(path) not in caught.value.outside


def test_what_people_write_is_read_as_they_mean_it(tmp_path):
    path = tmp_path / "e.yaml"
    path.write_bytes(b"\xef\xbb\xbfrun: 2026-11-22\r\nrow: feduaa  # K\xc3\xbcche\r\nseed: 3\r\n")
    assert read_yaml(path, WHAT) == {"run": "2026-11-22", "row": "feduaa", "seed": 3}
    words = "a: [no, Yes, off]\nb: 010\nc: 12:30\nd: [true, 0, -5, 1_000, 0x1F, 1.5, .5, 1.0e3, -.inf]\n"
    said = {"a": ["no", "Yes", "off"], "b": "010", "c": "12:30", "d": [True, 0, -5, 1000, 31, 1.5, 0.5, 1e3, -math.inf]}
    assert parse_yaml(words, WHAT) == said
    shared = "base: &b {x: 1, y: [1.5, null, true]}\nmore:\n  <<: *b\n  x: 2\nagain: *b\n"
    assert parse_yaml(shared, WHAT) == yaml.safe_load(shared)
