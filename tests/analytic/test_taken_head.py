"""A site that joins later: the federated head by a file, without a new run."""

import pytest
import torch
import yaml
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.data.phantoms.draw import write_hospital
from fedretina.data.phantoms.hospital import phantom_hospital
from fedretina.errors import StateError
from fedretina.exchange.encryption import SITE_FILE, new_keys
from fedretina.local import taken_head
from fedretina.loop import run_loop
from fedretina.prediction.predictor import Predictor
from fedretina.storage import read_json, read_tensors, write_json
from killed import killed_at_every_write


@pytest.fixture
def analytic(tiny):
    def make(**sums):
        words = {"answer": "federated", **sums}
        return tiny(row="analytic", phases=[{"name": "sums", "sums": words}], phantom_images=60)

    return make


def called(*words):
    found = CliRunner().invoke(main, [str(word) for word in words])
    return found.exit_code, found.output


@pytest.fixture
def later(tmp_path):
    """Folder of a hospital that was not in the run, and its site file."""
    folder = tmp_path / "later"
    write_hospital("site-4", phantom_hospital("site-4", 40), folder, 48, 3)
    return folder / "site.yaml"


def test_a_site_that_joins_later_has_the_head_that_it_would_have_had(analytic, phantoms, tmp_path, later):
    experiment = analytic()
    data = phantoms(experiment, "site-1", "site-2")
    run_loop(experiment, data, tmp_path / "runs", "r")
    code, said = called("head", "write", "r", "--root", tmp_path / "runs", "--out", tmp_path / "head.safetensors")
    assert code == 0, said
    tensors, record = read_tensors(tmp_path / "head.safetensors")
    assert sorted(tensors) == ["sums:counts", "sums:first", "sums:second"]
    assert not any(site in str(record) for site in data)
    out = tmp_path / "model"
    code, said = called("head", "take", tmp_path / "head.safetensors", "--site", "later", "--file", later, "--out", out)
    assert code == 0, said
    card, figures = read_json(out / "final" / "card.json"), read_json(out / "final" / "figures.json")
    assert (card["site"], card["sums"]["answer"], card["chosen"]) == ("later", "federated", "sums-0000")
    assert figures["test"]["auc"]["value"] > 0.5
    supported = figures["test"]["auc_supported"]["value"]
    told = f"{supported:.3f}, the mean over the grades with enough" if supported else "the mean over all grades"
    assert told in said
    assert (out / "final" / "report.json").exists()
    assert Predictor.load(out / "final").card["run"] == "r"
    assert called("head", "take", tmp_path / "head.safetensors", "--site", "x", "--file", later, "--out", out)[0] == 0


@pytest.fixture
def taken(analytic, phantoms, tmp_path, later):
    """Takes the head for `later` into `model`, as often as it is called; and that folder."""
    experiment = analytic()
    run_loop(experiment, phantoms(experiment, "site-1", "site-2"), tmp_path / "runs", "r")
    total, out = tmp_path / "head.safetensors", tmp_path / "model"
    assert called("head", "write", "r", "--root", tmp_path / "runs", "--out", total)[0] == 0

    def take():
        code, said = called("head", "take", total, "--site", "later", "--file", later, "--out", out)
        assert code == 0, said

    return take, out


def promise_and_cut_the_test_split(later):
    """What a site may change after a take: it asks for a promise, and half of its test split goes."""
    words = yaml.safe_load(later.read_text())
    later.write_text(yaml.safe_dump({**words, "data": {**words["data"], "promise": {"missed": 0.2}}}))
    manifest = later.parent / "manifest.csv"
    header, *rows = manifest.read_text().splitlines()
    at = header.split(",").index("split")
    tested = [row for row in rows if row.split(",")[at] == "test"]
    gone = tested[: len(tested) // 2]
    manifest.write_text("\n".join([header, *(row for row in rows if row not in gone)]))
    return len(tested) - len(gone)


def test_a_second_take_stands_on_what_the_site_has_then(taken, later):
    take, out = taken
    take()
    assert "promise" not in read_json(out / "final" / "card.json")
    left = promise_and_cut_the_test_split(later)
    (out / "final" / "federated").mkdir()  # as of a verdict that kept another model
    take()
    card = read_json(out / "final" / "card.json")
    assert (card["promise"]["missed"], card["test"]["images"], card["images"]["test"]) == (0.2, left, left)
    assert read_json(out / "final" / "report.json")["test"]["images"] == left
    assert sorted(path.name for path in out.iterdir()) == ["cache", "final", "lock"]
    assert not (out / "final" / "federated").exists()


def test_a_second_take_that_is_killed_leaves_the_model_of_the_first_whole(taken, later):
    take, out = taken
    take()
    first = {path.name: path.read_bytes() for path in (out / "final").iterdir()}
    promise_and_cut_the_test_split(later)

    def looked_at():
        assert {path.name: path.read_bytes() for path in (out / "final").iterdir()} == first
        Predictor.load(out / "final")

    _, places = killed_at_every_write(take, out, lambda path: "cache" not in path.parts, looked_at)
    assert places > 8
    assert "promise" in Predictor.load(out / "final").card


def test_a_take_killed_between_the_old_model_and_the_new_one_loses_neither(taken, monkeypatch):
    take, out = taken
    take()
    (out / "final").rename(out / taken_head._BEFORE)

    def failing(ending):
        raise StateError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(taken_head, "finalise", failing)
        with pytest.raises(AssertionError, match="no room"):
            take()
    Predictor.load(out / "final")
    take()
    assert sorted(path.name for path in out.iterdir()) == ["cache", "final", "lock"]


def test_a_site_that_points_to_no_data_is_a_phantom_only_where_the_run_took_some(
    analytic, tiny, phantoms, tmp_path, later
):
    some = analytic()
    none = tiny(row="analytic", phases=[{"name": "sums"}], phantom_images=0)
    empty = tmp_path / "empty.yaml"
    empty.write_text("{}")
    for experiment, expected in ((some, 0), (none, 2)):
        root, total = tmp_path / str(expected), tmp_path / f"{expected}.safetensors"
        run_loop(experiment, phantoms(some, "site-1"), root, "r")
        assert called("head", "write", "r", "--root", root, "--out", total)[0] == 0
        code, said = called("head", "take", total, "--site", "x", "--file", empty, "--out", root / "model")
        assert code == expected, said
    assert "x points to no data, and this job takes no phantom hospitals" in said
    card = read_json(tmp_path / "0" / "model" / "final" / "card.json")
    assert (card["synthetic"], card["images"]["train"]) == (True, 60)


def test_a_site_of_one_grade_takes_the_head(analytic, phantoms, tmp_path, later):
    experiment = analytic(answer="both")
    run_loop(experiment, phantoms(experiment, "site-1"), tmp_path / "runs", "r")
    total = tmp_path / "head.safetensors"
    assert called("head", "write", "r", "--root", tmp_path / "runs", "--out", total)[0] == 0
    manifest = later.parent / "manifest.csv"
    header, *rows = manifest.read_text().splitlines()
    at = {name: number for number, name in enumerate(header.split(","))}
    cells = [row.split(",") for row in rows]
    for row in cells:
        if row[at["split"]] == "train":
            row[at["label"]] = cells[0][at["label"]]
    manifest.write_text("\n".join([header, *(",".join(row) for row in cells)]))
    code, said = called("head", "take", total, "--site", "x", "--file", later, "--out", tmp_path / "model")
    assert code == 0, said


def test_an_encrypted_total_is_opened_by_the_sites_keys_alone(analytic, phantoms, tmp_path, later):
    pytest.importorskip("tenseal", reason="TenSEAL (extra `he`) is not installed")
    experiment = analytic()
    new_keys(tmp_path / "keys")
    run_loop(experiment, phantoms(experiment, "site-1", "site-2"), tmp_path / "runs", "r", tmp_path / "keys")
    total = tmp_path / "head.safetensors"
    code, said = called("head", "write", "r", "--root", tmp_path / "runs", "--out", total)
    assert (code, "needs the sites' file of keys" in said) == (0, True)
    assert all(tensor.dtype == torch.uint8 for tensor in read_tensors(total)[0].values())
    code, said = called("head", "take", total, "--site", "later", "--file", later, "--out", tmp_path / "a")
    assert (code, "this site has no keys" in said) == (2, True)
    words = yaml.safe_load(later.read_text())
    later.write_text(yaml.safe_dump({**words, "he_keys": str(tmp_path / "keys" / SITE_FILE)}))
    code, said = called("head", "take", total, "--site", "later", "--file", later, "--out", tmp_path / "b")
    assert code == 0, said


def test_what_gives_no_head_says_so(analytic, tiny, phantoms, tmp_path, later):
    trained = tiny(phases=[{"name": "train", "rounds": 1}])
    run_loop(trained, phantoms(trained, "site-1"), tmp_path / "runs", "trained")
    code, said = called("head", "write", "trained", "--root", tmp_path / "runs", "--out", tmp_path / "x")
    assert (code, "this run trained (row feduaa)" in said) == (2, True)
    code, said = called("head", "write", "nobody", "--root", tmp_path / "runs", "--out", tmp_path / "x")
    assert (code, "is missing" in said) == (2, True)
    run_loop(analytic(), phantoms(analytic(), "site-1"), tmp_path / "runs", "r")
    state = tmp_path / "runs" / "r" / "server" / "run.json"
    write_json(state, {**read_json(state), "digest": "of another version"})
    assert called("head", "write", "r", "--root", tmp_path / "runs", "--out", tmp_path / "x")[0] == 0
    take = ("--site", "later", "--file", later, "--out", tmp_path / "m")
    code, said = called("head", "take", tmp_path / "x", *take)
    assert (code, "another version of fedretina" in said) == (2, True)
    write_json(state, {**read_json(state), "done": 0})
    code, said = called("head", "write", "r", "--root", tmp_path / "runs", "--out", tmp_path / "x")
    assert (code, "has no total yet" in said) == (2, True)
    other = tmp_path / "runs" / "trained" / "server" / "train-0000.safetensors"
    code, said = called("head", "take", other, *take)
    assert (code, "is no file of `fedretina head write`" in said) == (2, True)
