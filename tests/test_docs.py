"""The documentation does not lie: links resolve, tables are rendered, examples run."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import get_args

import pytest
import yaml
from benchmarks.hostile_site_page import figures
from click.testing import CliRunner
from docs import render_attacks, render_house
from nvflare.tool.system.system_cli import def_system_cli_parser
from PIL import Image

from fedretina.cli import main
from fedretina.exchange.partition import partition
from fedretina.flare import job_context
from fedretina.flare.handover import HANDOVER
from fedretina.networks.build import build_on_meta
from fedretina.rows import ROWS
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import merged
from fedretina.settings.site import PROPERTY, SITE_FILE, ServerSettings, SiteSettings
from fedretina.uncertainty.theta import Reason
from fedretina_papers.plan import BenchmarkPlan, preset
from processor import FIGURE, PRINTED_ON, processor

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *DOCS.rglob("*.md"),
        ROOT / "CHANGELOG.md",
        ROOT / "README.md",
        ROOT / "poc/README.md",
        ROOT / "benchmarks/README.md",
        *ROOT.glob("provisioning/*.md"),
    ]
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def anchors(page):
    """The anchors that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def blocks(page, language):
    return [(file, text) for found, file, text in FENCE.findall((DOCS / page).read_text()) if found == language]


def in_subprocess(*arguments, python_path="", cwd=ROOT):
    """Run Python without the developer's FEDRETINA_ variables; give its output, or fail with it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FEDRETINA_")}
    environment["PYTHONPATH"] = str(python_path or ROOT / "custom")
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def figures_here(text):
    """A printed text as it can be compared here: without figures of trained models where it was printed elsewhere."""
    return text if processor() == PRINTED_ON else FIGURE.sub("#", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_resolves(page):
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_link_that_names_a_file_leads_to_it(page):
    named = re.findall(r"\[`?([^\]\[`]*\.[a-z]\w*)`?\]\(([^)\s#]+)", FENCE.sub("", page.read_text(encoding="utf-8")))
    for text, link in named:
        if not re.match(r"[a-z]+:", link):
            assert text.rpartition("/")[2] == Path(link).name, text


def test_every_picture_of_pixels_is_shown_and_is_of_phantoms_alone():
    """`docs/draw_pages.py` and `docs/draw_phantoms.py` mark what they draw, and a page shows it by its name."""
    words = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown = {Path(name).name for name in re.findall(r"""(?:\]\(|src=")([^)"\s]+\.png)""", words)}
    drawn = {path.name: path for path in (DOCS / "pictures").rglob("*.png")}
    assert drawn.keys() == shown
    for path in drawn.values():
        with Image.open(path) as picture:
            assert picture.info["Synthetic"] == "fedretina phantom, not a patient"
            assert picture.mode == "P"  # of few colours
            assert path.stat().st_size < 150_000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_names_a_path_of_this_machine(page):
    text = page.read_text(encoding="utf-8")
    for path in ("/home/", "/tmp/", f"{ROOT}/", f"{Path.home()}/"):
        assert path not in text.replace("https://", ""), path


def test_each_term_of_the_glossary_is_defined_once_and_used():
    glossary = DOCS / "glossary.md"
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", glossary.read_text(encoding="utf-8"), re.MULTILINE)
    terms = [term for term, meaning in rows if term != "term" and set(term) != {"-"}]
    assert len(terms) >= 60
    assert len({term.lower() for term in terms}) == len(terms)
    others = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page != glossary)
    unused = [term for term in terms if not re.search(rf"(?<!\w){re.escape(term)}(?!\w)", others, re.IGNORECASE)]
    assert not unused, f"no other page uses {unused}"


def test_every_command_that_shuts_a_site_out_or_lets_it_in_is_one_of_flares_and_names_a_kit():
    """Without a kit FLARE asks nobody: it ends with `no active startup kit is configured`."""
    parser = ArgumentParser(exit_on_error=False)
    def_system_cli_parser(parser)
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    found = [parser.parse_args(words.split()) for words in re.findall(r"`nvflare system (\w+-client [^`]*)`", text)]
    assert {one.system_sub_cmd for one in found} == {"disable-client", "enable-client"}
    assert all((one.client_name, one.startup_kit, one.force) == ("SITE", "KIT", True) for one in found)


# Beginnings of blocks that show no output: commands, files, and a drawing.
NO_OUTPUT = re.compile(
    r"(\.venv/bin/|/opt/fedretina(-b)?/bin/)?(fedretina|nvflare|make|python|systemctl|umask|useradd|groupadd|cp|cd) "
    r"|(sbatch|kubectl|export) |FEDRETINA_RUN=|table inet|file,label|photographs/|import |server   "
)
# Which test renders or compares what a page prints.
COMPARED = {
    "docs/add_a_method.md": "test_docs.py",
    "docs/add_a_reader.md": "test_add_a_reader.py",
    "docs/admin.md": "poc/test_admin_commands.py",
    "docs/api.md": "test_api.py",
    "docs/data_import.md": "cli/test_data_import.py",
    "docs/demo.md": "test_docs.py",
    "docs/feduaa.md": "test_docs.py",
    "docs/for_hospitals.md": "cli/test_data_check.py",
    "docs/network.md": "provisioned/test_site_check.py",
    "docs/one_round.md": "test_loop.py",
    "docs/other_modalities.md": "data/test_task_readers.py",
    "docs/robust_rules.md": "aggregation/test_proportion.py",
    "poc/README.md": "poc/test_rehearsal.py",
}


def test_every_printed_output_is_rendered_or_compared_by_a_test():
    printing = set()
    for page in PAGES:
        bare = [
            text for language, _, text in FENCE.findall(page.read_text(encoding="utf-8")) if language in ("", "text")
        ]
        if any(not NO_OUTPUT.match(text) for text in bare):
            printing.add(page.relative_to(ROOT).as_posix())
    assert printing == COMPARED.keys()
    for page, test in COMPARED.items():
        assert Path(page).name in (ROOT / "tests" / test).read_text(encoding="utf-8"), (page, test)


def test_the_readme_leads_to_the_glossary():
    assert "docs/glossary.md" in LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))


def test_the_figures_of_the_robust_rules_are_the_stored_ones():
    rendered = figures(ROOT / "benchmarks" / "results" / "hostile_site.jsonl.gz")
    assert f"figures -->\n{rendered}\n<!-- end" in (DOCS / "robust_rules.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_settings_page_is_what_the_classes_say():
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    # In a process of its own: in this one other tests have parts of their own, which would stand on the page.
    rendered = in_subprocess(
        "-c", "import sys; from docs import render_settings as r; sys.stdout.write(r.render(r.PAGE.read_text('utf-8')))"
    )
    assert page == rendered, "run `.venv/bin/python docs/render_settings.py` and look at what changed"


def test_what_the_prose_on_settings_lists_is_all_there_is():
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    servers = re.search(r"The server's own settings are (.*?), in the scope", page, re.DOTALL)[1]
    assert re.findall(r"`(\w+)`", servers) == list(ServerSettings.model_fields)
    left_out = re.search(r"All settings but (.*?) go into the digest", page, re.DOTALL)[1]
    named = {name for name in re.findall(r"`([\w.]+)`", left_out) if "." not in name}
    assert named == Experiment.model_fields.keys() - Experiment.resolve({"row": "fedavg"}).agreed().keys()


def test_the_table_of_attacks_is_what_the_tests_show():
    page = (DOCS / "trust.md").read_text(encoding="utf-8")
    rendered = render_attacks.render(page, render_attacks.collect())
    assert page == rendered, "run `.venv/bin/python docs/render_attacks.py` and look at what changed"
    rows = page.split("<!-- begin attacks -->")[1].count("\n| ") - 2
    assert rows >= 35


def test_the_settings_page_knows_every_environment_variable():
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    named = {SITE_FILE, job_context.STATE_ROOT, job_context.RUN, HANDOVER}
    assert set(re.findall(r"^\| `(FEDRETINA_\w+)`", page, re.MULTILINE)) == named


def test_every_row_is_on_the_page_of_rows():
    table = "".join(re.findall(r"^\| (`.*?) \|", (DOCS / "rows.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", table)) == set(ROWS)


def test_the_house_is_drawn_from_todays_imports():
    graph = render_house.imports()
    page = render_house.PAGE.read_text(encoding="utf-8")
    assert render_house.render(page) == page, "run `make house` and look at the picture"
    assert render_house.PICTURE.read_text(encoding="utf-8") == render_house.picture(graph), "run `make house`"
    # An import inside a function counts; what others import already draws no line.
    assert "flare" in graph["cli"]
    assert "errors" in graph["storage"]
    drawn = render_house.needed({"roof": {"wall", "ground"}, "wall": {"ground"}, "ground": set()})
    assert drawn == {"roof": {"wall"}, "wall": {"ground"}, "ground": set()}
    circle = render_house.joined({"roof": {"a"}, "a": {"b"}, "b": {"a", "ground"}, "ground": set()})
    assert circle == {"roof": {"a, b"}, "a, b": {"ground"}, "ground": set()}
    assert render_house.floors(circle) == [["ground"], ["a, b"], ["roof"]]


def test_the_examples_of_the_settings_page_are_accepted():
    experiment, site, policy = (yaml.safe_load(text) for _, text in blocks("settings.md", "yaml"))
    assert SiteSettings.model_validate(policy).policy.noise.multiplier == 0.3
    paper = Experiment.resolve(experiment)
    assert (paper.network.encoder, paper.images.image_size, paper.phases[0].rounds) == ("resnet50", 256, 100)
    settings = SiteSettings.model_validate(site)
    chosen = job_context.with_weights_file(paper, settings)
    assert chosen.network.weights.file == settings.weights_file
    scopes = yaml.safe_load(blocks("settings.md", "json")[0][1])
    assert scopes["default_scope"] == scopes["scopes"][0]["name"]
    assert set(scopes["scopes"][0]["properties"]) == {PROPERTY}


@pytest.mark.parametrize("row", ["feduaa", "feduaa_official"])
def test_the_partition_on_the_method_page_is_the_real_one(row):
    experiment = Experiment.resolve({"row": row, "network": {"encoder": "resnet50"}})
    table = partition(build_on_meta(experiment.network, 5), experiment.exchange).table()
    assert table in (DOCS / "feduaa.md").read_text(encoding="utf-8")


def test_the_method_page_knows_every_reason_of_theta():
    page = (DOCS / "feduaa.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|.*\|$", page, re.MULTILINE)) >= set(get_args(Reason))


@pytest.mark.slow
def test_the_plain_loop_example_runs(tmp_path, monkeypatch, capsys, clean_environment):
    example = DOCS / "examples" / "plain_loop.py"
    assert len(example.read_text().splitlines()) <= 40
    monkeypatch.setattr(sys, "argv", [str(example), str(tmp_path)])
    runpy.run_path(str(example), run_name="__main__")
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table[1:5]] == ["site-1", "site-2", "site-3", "mean"]
    assert all(0 < float(line.split()[3]) <= 1 for line in table[1:4])


ROW_OF_TABLE = re.compile(
    r"^ +(site-\d) +(\d) +(\d+)/(\d+)/(\d+) +(\S+) +(\S+) \((\d)\) +(\S+) +(\S+) +(\S+) +(\S+)$", re.MULTILINE
)
COLUMNS = (
    *("grades", "images_train", "images_val", "images_test", "test_auc", "test_auc_supported"),
    *("test_grades_supported", "test_accuracy", "theta", "weight", "test_error_auroc"),
)


def verdict_of(said):
    """A verdict that is told in this sentence."""
    found = [float(number.replace("\u2212", "-")) for number in re.findall(r"\u2212?\d+(?:\.\d+)?", said)]
    if said.startswith("Alone you do better"):
        own, federated, low, high, _, images, patients = found
        outcome, gap = "lost", {"low": -high, "high": -low}
    else:
        images, federated, own, low, high, _, patients = found
        outcome, gap = "untold", {"low": low, "high": high}
    models = {"federated": {"referable_auc": federated}, "own": {"referable_auc": own}}
    differences = {"own": {"referable_auc": gap}}
    test = {"images": int(images), "patients": int(patients), "models": models, "differences": differences}
    about = {"rival": "own", "measure": "referable_auc", "start": "package", "shared": True, "outcome": outcome}
    return {**about, "test": test}


def test_what_the_demo_prints_at_its_end_is_what_show_prints_of_such_figures(tmp_path, monkeypatch, clean_environment):
    """A run takes minutes, and its figures are one processor's: compared are words, columns and paths."""
    (printed,) = (text for _, text in blocks("demo.md", "") if " theta " in text)
    sites = {
        site: {name: None if word == "-" else float(word) for name, word in zip(COLUMNS, words, strict=True)}
        for site, *words in ROW_OF_TABLE.findall(printed)
    }
    run, chosen, digest = re.search(r"^run (\S+), model of (\S+), digest (\w+)$", printed, re.MULTILINE).groups()
    record = {
        **{"run": run, "chosen": chosen, "model_digest": digest, "verdicts": {"sites": len(sites), "most": "untold"}},
        "sites": {site: {**figures, "synthetic": True} for site, figures in sites.items()},
    }
    folder = tmp_path / "fedretina_runs" / run / "server"
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(record), encoding="utf-8")
    (folder / "report.html").touch()
    for site, said in re.findall(r"^(site-\d): (.*)$", printed, re.MULTILINE):
        final = folder.parent / site / "final"
        final.mkdir(parents=True)
        (final / "report.json").write_text(json.dumps({"verdict": verdict_of(said)}), encoding="utf-8")
        (final / "report.html").touch()
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["show"]).output == printed
    assert len(sites) == 5
    assert PRINTED_ON in (DOCS / "demo.md").read_text(encoding="utf-8")


BETWEEN = "--- next\n"
# In one process: each of its own would import torch.
TESTS_AND_COMMANDS = f"""
import pytest
from fedretina.cli import main
tests = ("losses/test_smoothed.py", "losses/test_objective_settings.py", "test_experiment.py")
assert pytest.main(["-q", "-p", "no:cacheprovider", *(f"tests/{{test}}" for test in tests)]) == 0
for words in ("loop smoothed.yaml --sites site-1,site-2 --run try-smoothed", "methods"):
    print({BETWEEN!r}, end="")
    assert not main(words.split(), standalone_mode=False)
"""


@pytest.mark.slow
def test_the_worked_example_of_a_new_method_runs(tmp_path):
    shutil.copytree(ROOT / "custom", tmp_path / "custom")  # with its bytecode, which need not be made anew
    shutil.copytree(ROOT / "tests" / "losses", tmp_path / "tests" / "losses")
    shutil.copy(ROOT / "tests" / "test_experiment.py", tmp_path / "tests")
    for file, text in blocks("add_a_method.md", "python"):
        assert not (tmp_path / file).exists(), file
        (tmp_path / file).write_text(text)
    for file, text in blocks("add_a_method.md", "diff"):
        apply(tmp_path / file, text)
    (tmp_path / "smoothed.yaml").write_text(blocks("add_a_method.md", "yaml")[0][1])
    told = in_subprocess("-c", TESTS_AND_COMMANDS, python_path=tmp_path / "custom", cwd=tmp_path).split(BETWEEN)
    assert len(told) == 3
    (table,) = (text for _, text in blocks("add_a_method.md", "") if " theta " in text)
    printed = "".join(told[1].splitlines(keepends=True)[: table.count("\n")])  # what follows are paths
    assert figures_here(printed) == figures_here(table)
    assert "fedbn_smoothed" in told[2]
    assert "fedbn_smoothed" not in ROWS


OWN = ("own_parts", "own_encoder", "own_estimator", "own_modality")
# Installed side by side, over a network of few blocks, and in one process, as above.
SCRIPTS = f"""
import runpy, sys
from conftest import few_blocks
with few_blocks():
    for script in sys.argv[1:]:
        sys.argv[1:] = [script + "-runs"]
        print({BETWEEN!r}, end="")
        runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.slow
def test_the_parts_of_other_packages_do_what_the_page_prints(tmp_path):
    files = dict(blocks("add_a_method.md", "python"))
    for module in OWN:
        for name in (f"{module}.py", f"try_{module}.py"):
            (tmp_path / name).write_text(files[name])
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (points,) = (text for _, text in blocks("add_a_method.md", "toml") if module in text)
        asked = points.replace('[project.entry-points."fedretina.parts"]', "[fedretina.parts]").replace('"', "")
        (info / "entry_points.txt").write_text(asked)
    paths = os.pathsep.join(map(str, (ROOT / "custom", ROOT / "tests", tmp_path)))
    scripts = [tmp_path / f"try_{module}.py" for module in OWN]
    told = in_subprocess("-c", SCRIPTS, *scripts, python_path=paths).split(BETWEEN)[1:]
    assert len(told) == len(OWN)
    assert set(told) <= {text for _, text in blocks("add_a_method.md", "")}


def apply(file, diff):
    """Apply a diff without line numbers: the lines of a hunk that are there stand in the file exactly once."""
    text = file.read_text()
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        assert text.count(before) == 1, before
        text = text.replace(before, "".join(line[1:] for line in lines if line[0] in " +"))
    file.write_text(text)


def test_the_plan_on_the_page_of_tables_can_be_used():
    words = yaml.safe_load(blocks("paper_tables.md", "yaml")[0][1])
    words["experiment"]["training"]["device"] = "cpu"
    plan = BenchmarkPlan.read(merged(preset("feduaa"), words))
    assert [choice.name for choice in plan.rows][-1] == "feduaa_slow_kl"
    assert plan.grid_of(plan.rows[0]) == ()
    # That of a new method, with a row that stands here in the place of the new one.
    words = yaml.safe_load(blocks("add_a_method.md", "yaml")[1][1].replace("fedbn_smoothed", "fedrep"))
    plan = BenchmarkPlan.read(merged(preset("feduaa"), words))
    assert [choice.name for choice in plan.rows] == ["singleset", "fedbn", "fedrep"]
    assert (plan.reference, plan.beside, plan.grid_of(plan.rows[0])) == ("fedbn", "singleset", ())
