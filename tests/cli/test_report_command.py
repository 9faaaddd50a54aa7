"""`fedretina report`: pages again from what a run has stored, at the server and at a site."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.loop import run_loop


@pytest.fixture(scope="module")
def finished(tmp_path_factory, little_encoders):
    """A finished run of two phantom sites and one round."""
    from fedretina.data.site_data import load_site_data
    from fedretina.settings.experiment import Experiment
    from fedretina.settings.site import SiteDataSettings

    root = tmp_path_factory.mktemp("runs")
    experiment = Experiment.resolve(
        {
            "seed": 3,
            "phases": [{"name": "train", "rounds": 1}],
            "images": {"image_size": 32},
            "network": {"encoder": "efficientnet_lite0", "head": {"width": 16}},
            "training": {"batch_size": 8, "threads": 1},
            "phantom_images": 24,
        }
    )
    settings = SiteDataSettings(phantom_images=24)
    sites = {
        name: load_site_data(name, settings, experiment.images, experiment.seed, root / "cache" / name)
        for name in ("site-1", "site-2")
    }
    run_loop(experiment, sites, root, "one")
    return root


@pytest.fixture
def root(finished, tmp_path):
    """A copy of it that a test may change, without the models."""
    shutil.copytree(finished / "one", tmp_path / "one", ignore=shutil.ignore_patterns("*.safetensors"))
    return tmp_path


def call(*words):
    return CliRunner().invoke(main, ["report", *map(str, words)])


def test_the_server_s_page_is_made_of_its_results(root):
    folder = root / "one" / "server"
    for path in folder.glob("report.*"):
        path.unlink()
    done = call("--root", root)
    assert done.exit_code == 0
    assert done.output == f"report: {folder / 'report.html'}\n"
    assert json.loads((folder / "report.json").read_text())["kind"] == "server"
    first = (folder / "report.html").read_bytes()
    assert call("one", "--root", root, "--server").exit_code == 0
    assert (folder / "report.html").read_bytes() == first
    assert b"2 sites trained together" in first


def test_a_site_s_page_is_the_one_that_the_run_wrote(root):
    page = root / "one" / "site-2" / "final" / "report.html"
    written = page.read_bytes()
    page.unlink()
    assert call("one", "--root", root, "--site", "site-2").exit_code == 0
    assert page.read_bytes() == written
    assert b"How the model does at" in written


def test_a_record_by_its_path_and_a_place_for_the_page(root, tmp_path):
    source = root / "one" / "site-1" / "final" / "report.json"
    target = tmp_path / "deep" / "page.html"
    done = call(source, "--out", target)
    assert done.output == f"report: {target}\n"
    assert target.read_bytes() == (root / "one" / "site-1" / "final" / "report.html").read_bytes()
    results = shutil.copy(root / "one" / "server" / "results.json", tmp_path)
    assert call(results, "--out", target).exit_code == 0
    assert b"How the model does over all sites" in target.read_bytes()
    assert not (tmp_path / "report.json").exists()


def test_what_is_not_there_is_said_in_a_sentence(root, tmp_path):
    without = tmp_path / "two" / "site-1"
    without.mkdir(parents=True)
    (without / "state.json").write_text("{}")
    for words, sentence in (
        (["nope", "--root", root], "no finished run nope"),
        (["one", "--root", root, "--site", "site-9"], "no report of site-9 in a run one"),
        (["two", "--root", tmp_path, "--site", "site-1"], "the site's log says why"),
        (["--root", tmp_path / "none"], "no finished run"),
        ([root / "one" / "site-1" / "final" / "card.json"], "neither a report.json nor a results.json"),
        ([root / "missing.json"], "is missing"),
        (["one", "--root", root, "--site", "site-1", "--server"], "exclude each other"),
    ):
        done = call(*words)
        assert done.exit_code == 2, words
        assert sentence in done.output, words


def test_a_record_of_another_format_is_refused(root):
    source = root / "one" / "site-1" / "final" / "report.json"
    record = json.loads(source.read_text())
    source.write_text(json.dumps({**record, "format": 99}))
    done = call(source)
    assert done.exit_code == 2
    assert "format 99" in done.output


def test_a_place_that_cannot_be_written_leaves_the_old_page(root, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    done = call("one", "--root", root, "--out", blocked / "page.html")
    assert done.exit_code == 2
    assert "was not written" in done.output
    assert blocked.read_text() == "in the way"


def test_a_run_may_be_named_by_its_folder_and_a_name_is_no_pattern(root):
    for words in ((root / "one",), (root / "one", "--site", "site-1")):
        done = call(*words)
        assert done.exit_code == 0, done.output
        assert "report.html" in done.output
    for words in (("on*", "--root", root), ("/nowhere/one", "--root", root)):
        done = call(*words)
        assert done.exit_code == 2
        assert "no finished run" in done.output
