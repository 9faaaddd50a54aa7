"""Every study of benchmarks/ in small, on phantoms: its own command from images to page, so that none is broken.

What a study costs lies in its constants (sizes, rows, draws), which are small here; nothing else of it is changed.
"""

import shutil
import sys
from functools import partial

import pytest
from benchmarks import (
    common,
    doubt,
    doubt_page,
    gate,
    gate_page,
    hostile_site,
    hostile_site_page,
    promise,
    promise_page,
    proportions,
    sizing,
    small_sites,
    small_sites_page,
    wire_codec,
    wire_codec_page,
    wire_codec_sizes,
)

from fedretina.data.phantoms.draw import write_hospital
from fedretina.data.phantoms.hospital import phantom_hospital
from fedretina.storage import read_json
from fedretina_papers.packed import read_packed

SITES = ("site-1", "site-2")
SMALL = {"images": {"image_size": 32}, "network": {"encoder": "efficientnet_lite0"}}


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """Two hospitals as folders of pictures with their site files."""
    root = tmp_path_factory.mktemp("hospitals")
    for site in SITES:
        write_hospital(site, phantom_hospital(site, 60), root / site, 64, 1)
    return root


class Bench:
    """Where one study runs: its stored figures and its page are copies in a folder of the test's own."""

    def __init__(self, monkeypatch, folder, hospitals):
        self.set, self.folder, self.hospitals = monkeypatch.setattr, folder, hospitals
        self.sites = [word for site in SITES for word in ("--site", f"{site}={hospitals / site / 'site.yaml'}")]
        for name in ("images", "network"):
            monkeypatch.setitem(small_sites.BASE, name, SMALL[name])

    def store(self, *modules, name="STORED"):
        """Let modules store under this folder, which holds nothing yet; returns the file."""
        file = self.folder / getattr(modules[0], name).name
        for module in modules:
            self.set(module, name, file)
        return file

    def page(self, *modules):
        """Let modules write into a copy of their page."""
        page = self.folder / modules[0].PAGE.name
        shutil.copyfile(modules[0].PAGE, page)
        for module in modules:
            self.set(module, "PAGE", page)
        return page

    def main(self, study, *words):
        """Call a study as `python -m benchmarks.STUDY WORDS` does."""
        self.set(sys, "argv", [study.__name__, *map(str, words)])
        assert not study.main()


def run_small_sites(bench):
    stored, page = bench.store(small_sites), bench.page(small_sites_page)
    words = ["--rows", "both,both_held", "--sizes", "15", "--draws", "1", "--scratch", bench.folder / "scratch"]
    bench.main(small_sites, "fundus", *bench.sites, *words)
    assert {run["row"] for run in read_packed(stored).values()} == {"both", "both_held"}
    assert "| `analytic`, the mean of own and federated head |" in page.read_text()


def run_promise(bench):
    stored, page = bench.store(promise), bench.page(promise_page)
    bench.set(promise, "PATIENTS", (6,))
    bench.set(promise, "_LEFT", 1)
    bench.main(promise, "fundus", *bench.sites, "--draws", "3", "--scratch", bench.folder / "scratch")
    assert all(run["drawn"] for run in read_packed(stored).values())
    assert page.exists()


def run_gate(bench):
    stored, page = bench.store(gate), bench.page(gate_page)
    bench.set(gate, "_SPOILED", 4)
    scratch, strangers = bench.folder / "scratch", bench.hospitals / "site-2" / "images"
    words = ["--rows", "analytic", "--strangers", f"others={strangers}", "--scratch", scratch]
    bench.main(gate, "fundus", *bench.sites, *words)
    assert all(run["groups"]["own"]["images"] for run in read_packed(stored).values())
    bench.main(gate, "--render")
    assert "site-1" in page.read_text()


def run_doubt(bench):
    stored = bench.store(doubt)
    bench.set(doubt, "_SPOILED", 4)
    bench.set(doubt, "_EVIDENCE_STEPS", 10)
    bench.set(doubt_page, "write_page", partial(doubt_page.write_page, page=bench.folder / "page.md"))
    strange = bench.hospitals / "site-2" / "site.yaml"
    words = ["--stranger", f"site-1/other={strange}", "--sizes", "15", "--draws", "1"]
    bench.main(doubt, "fundus", *bench.sites, *words, "--scratch", bench.folder / "scratch")
    (run,) = read_packed(stored).values()
    assert "other" in run["sites"]["site-1"]["strangers"]
    assert "site-1" in (bench.folder / "page.md").read_text()


def run_wire_codec(bench):
    stored = bench.store(wire_codec, wire_codec_page)
    sizes = bench.store(wire_codec_sizes, wire_codec_page, name="SIZES")
    page = bench.page(wire_codec_page)
    bench.set(wire_codec, "BASE", {**wire_codec.BASE, **SMALL})
    bench.set(wire_codec, "SETS", {"fundus": wire_codec.Set(40, 1, {})})
    bench.set(wire_codec_sizes, "_BASE", {**wire_codec_sizes._BASE, **SMALL, "phantom_images": 16})
    bench.set(wire_codec_sizes, "CASES", dict([*wire_codec_sizes.CASES.items()][:2]))
    words = ["--rows", "fedavg", "--codecs", "none,int4", "--seeds", "1", "--scratch", bench.folder / "scratch"]
    bench.main(wire_codec, "fundus", *bench.sites, *words)
    bench.main(wire_codec, "--sizes")
    runs = [read_packed(stored)[f"fundus-fedavg-{name}-1.json"] for name in ("none", "int4")]
    plain, coded = (sum(run["bytes_up"]) for run in runs)
    assert coded < plain / 2
    assert all(run["moved"]["finalise"]["down"] == run["bytes_down"][-1] > 0 for run in runs)
    cases = read_json(sizes)["cases"]
    assert len(cases) == 2
    assert all(case["moved"]["finalise"]["down"] == 2 * case["end"][-1] > 0 for case in cases.values())
    assert "at the end" not in page.read_text().partition("<!-- begin figures -->")[2]
    assert "| FedAvg | `int4` | 1 |" in page.read_text()


def run_hostile_site(bench):
    stored, page = bench.store(hostile_site), bench.page(hostile_site_page)
    training = {**hostile_site.EXPERIMENT["training"], "batch_size": 8}
    few = {"phases": [{"name": "train", "rounds": 1}], "training": training, "phantom_images": 24, "quorum": 3}
    small = {**hostile_site.EXPERIMENT, **SMALL, **few}
    bench.set(hostile_site, "SITES", (*SITES, "site-3"))
    bench.set(hostile_site, "EXPERIMENT", small)
    for name, kept in (("RULES", ("UAW", "median")), ("ATTACKS", ("none", "turned, x5"))):
        bench.set(hostile_site, name, {one: getattr(hostile_site, name)[one] for one in kept})
    bench.main(hostile_site, "--seeds", "1", "--budget", "1e9", "--scratch", bench.folder / "scratch")
    assert len(read_packed(stored)) == 4
    assert "median" in page.read_text()


def run_proportions(bench):
    stored, page = bench.store(proportions), bench.page(proportions)
    bench.set(proportions, "PHANTOMS", ("scaffold",))
    bench.set(proportions, "_SIZES", {"site-1": 12, "site-2": 24})
    bench.main(proportions, "--data", "phantoms")
    bench.main(proportions, "--render")
    assert 0 < read_json(stored)["cases"][0]["largest"] < 1e6
    assert "| phantoms | `scaffold` |" in page.read_text()


def run_sizing(bench):
    bench.set(sizing, "_SIDE", 32)
    bench.set(sizing, "_BATCH", 8)
    figures = sizing.measure("efficientnet_lite0", "feduaa", bench.folder)
    assert min(figures.values()) > 0
    cases = {f"{encoder}/{row}": figures for encoder in sizing.NETWORKS for row in sizing.ROWS}
    page = sizing.render({"cases": cases, "machine": common.machine()})
    assert page.count("| `feduaa` |") == 2 * len(sizing.NETWORKS)


STUDIES = {
    "small_sites": run_small_sites,
    "promise": run_promise,
    "gate": run_gate,
    "doubt": run_doubt,
    "wire_codec": run_wire_codec,
    "hostile_site": run_hostile_site,
    "proportions": run_proportions,
    "sizing": run_sizing,
}


@pytest.mark.slow
@pytest.mark.usefixtures("little_encoder")
@pytest.mark.parametrize("name", STUDIES)
def test_a_study_runs_in_small_from_its_images_to_its_page(name, monkeypatch, tmp_path, hospitals):
    STUDIES[name](Bench(monkeypatch, tmp_path, hospitals))


ELSEWHERE = {
    "wire_codec_sizes": "test_studies.py",  # with the codecs' page
    "leaks": "test_leaks.py",
    "trust_page": "test_studies_of_answers.py",
}
NO_STUDIES = {
    *("__init__", "__main__", "one", "common", "processes", "render"),  # what runs the others
    *("echo", "echo_sites", "resnet50", "round_jobs"),  # what round_overhead, round_tls and many_sites measure
    "flower_rounds",  # Flower's side of round_overhead, which needs an environment of its own
}


def test_every_file_of_benchmarks_has_a_form_that_tests_run(request):
    names = {path.stem for path in (request.config.rootpath / "benchmarks").glob("*.py")}
    pages = {name for name in names if name.removesuffix("_page") in names and name.endswith("_page")}
    covered = [*common.NAMES, *STUDIES, *ELSEWHERE, *NO_STUDIES]
    assert sorted(covered) == sorted(names - pages)
    for name, file in ELSEWHERE.items():
        assert name in (request.path.parent / file).read_text(encoding="utf-8")
