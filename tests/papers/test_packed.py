"""A study in one file: the same bytes each time, nothing lost, nothing written where it should not be."""

import gzip
import json

import pytest

from fedretina.errors import StateError
from fedretina.storage import write_json
from fedretina_papers.packed import pack, read_packed, unpack


@pytest.fixture
def study(tmp_path):
    folder = tmp_path / "study"
    for name, held in {"plan.json": {"rows": ["a"]}, "results/a/seed-1.json": {"auc": 0.1 + 0.2}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_json(folder / name, held)
    return folder


def test_what_is_packed_comes_back_and_twice_the_same_bytes(study, tmp_path):
    assert pack(study, tmp_path / "one.jsonl.gz") == 2
    pack(study, tmp_path / "two.jsonl.gz")
    assert (tmp_path / "one.jsonl.gz").read_bytes() == (tmp_path / "two.jsonl.gz").read_bytes()
    unpack(tmp_path / "one.jsonl.gz", tmp_path / "back")
    for path in study.rglob("*.json"):
        assert (tmp_path / "back" / path.relative_to(study)).read_bytes() == path.read_bytes()


def test_it_is_packed_into_a_new_folder_or_a_sentence_is_said(study, tmp_path):
    assert pack(study, tmp_path / "new" / "deep" / "one.jsonl.gz") == 2
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file" / "one.jsonl.gz"):
        with pytest.raises(StateError, match="was not saved"):
            pack(study, place)


def test_a_folder_that_holds_a_study_is_left_as_it_is(study, tmp_path):
    pack(study, tmp_path / "one.jsonl.gz")
    with pytest.raises(StateError, match="holds results already"):
        unpack(tmp_path / "one.jsonl.gz", study)


@pytest.mark.parametrize(
    "data",
    [b"no gzip", gzip.compress(b"{}"), gzip.compress(b"no json")],
    ids=["no gzip", "no study", "no json"],
)
def test_what_is_no_packed_study_is_said(tmp_path, data):
    (tmp_path / "bad.jsonl.gz").write_bytes(data)
    for name in ("bad", "missing"):
        with pytest.raises(StateError, match="no packed results"):
            read_packed(tmp_path / f"{name}.jsonl.gz")


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path):
    line = json.dumps({"file": "../out.json", "holds": {}})
    (tmp_path / "bad.jsonl.gz").write_bytes(gzip.compress(line.encode()))
    with pytest.raises(StateError, match="outside its folder"):
        unpack(tmp_path / "bad.jsonl.gz", tmp_path / "in")
    assert not (tmp_path / "out.json").exists()
