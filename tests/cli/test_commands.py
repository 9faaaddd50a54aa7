import ast
import io
import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.cli.shared import progress, steps
from fedretina.jobs import settings_of_row
from fedretina.loop import run_loop
from fedretina.rows import ROWS
from fedretina.settings.experiment import Experiment
from fedretina.version import __version__

REPOSITORY = Path(__file__).resolve().parents[2]
JOBS = REPOSITORY / "jobs"


def call(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def test_methods_lists_the_whole_table():
    result = call("methods", "--encoder", "resnet18")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == list(ROWS)


def test_methods_counts_the_bytes_of_each_row():
    listed = json.loads(call("methods", "--encoder", "resnet50", "--sites", 3, "--json").output)
    found = {entry["name"]: entry for entry in listed}
    assert found["singleset"]["up"] == 0
    # ResNet-50 without its classifier: 23,454,912 weights outside BatchNorm, 53,120 in its scales and shifts, twice
    # that in running statistics; four bytes each.
    assert found["fedbn"]["up"] == 4 * 23_454_912
    assert found["fedavg"]["up"] == 4 * (23_454_912 + 2 * 53_120)
    assert found["scaffold"]["up"] == 4 * (2 * (23_454_912 + 53_120) + 53_120)
    assert found["feduaa_scaffold"]["up"] == 2 * found["feduaa"]["up"]
    assert found["fedap"]["once"] == 4 * 53_120
    assert found["feduaa"]["federation"] == 2 * 3 * found["feduaa"]["up"]
    assert found["fedrep"]["phases"] == ["train (head x5, then encoder x1)", "validate", "finalise"]


def test_methods_leave_out_what_an_encoder_does_not_fit():
    result = call("methods", "--encoder", "vit_small", "--json")
    # No BatchNorm to compare, and samples that are no whole number of patches.
    unfit = ("fedap", "fedee_fedap", "fedee_dermoscopy", "fedee_activity")
    assert [entry["name"] for entry in json.loads(result.output)] == [name for name in ROWS if name not in unfit]
    assert f"by name: {', '.join(unfit)}." in call("methods", "--encoder", "vit_small").output
    asked = call("methods", "fedap", "--encoder", "vit_small")
    assert asked.exit_code == 2
    assert "has no BatchNorm" in asked.output
    assert call("methods", "--encoder", "vgg16").exit_code == 2


def test_one_method_in_full_and_an_unknown_one():
    text = call("methods", "scaffold", "--encoder", "resnet18").output
    assert "Karimireddy" in text
    assert "control" in text
    wrong = call("methods", "no_such_row")
    assert wrong.exit_code == 2
    assert "there is no row 'no_such_row'" in wrong.output


def test_show_prints_the_latest_run_and_where_it_lies(tiny, phantoms, tmp_path):
    experiment = tiny(phases=[{"name": "train", "rounds": 1}])
    results = run_loop(experiment, phantoms(experiment, "site-1", "site-2"), tmp_path / "runs", "first")
    result = call("show", "--root", tmp_path / "runs")
    assert result.exit_code == 0, result.output
    assert "run first, model of train-0000" in result.output
    assert "synthetic images (phantom hospitals): site-1, site-2" in result.output
    row = next(line for line in result.output.splitlines() if line.strip().startswith("site-2"))
    cells = row.split()
    figures = results["sites"]["site-2"]
    assert cells[1] == "4"
    assert cells[3] == f"{figures['test_auc']:.3f}"
    assert cells[4:6] == ["-", "(0)"]  # no grade has ten test patients
    assert cells[6] == f"{figures['test_accuracy']:.3f}"
    assert cells[7] == f"{figures['theta']:.3f}"
    assert cells[8] == f"{figures['weight']:.3f}"
    assert str(tmp_path / "runs" / "first") in result.output


def test_show_without_a_run_says_how_to_get_one(tmp_path):
    result = call("show", "--root", tmp_path)
    assert result.exit_code == 2
    assert f"no finished run under {tmp_path}: give --root" in result.output
    assert f"no finished run spring under {tmp_path}: give --root" in call("show", "spring", "--root", tmp_path).output
    assert f"no finished run under {tmp_path}: give --root" in call("report", "--root", tmp_path).output


def test_show_does_not_wait_for_torch(tmp_path):
    words = "import sys; from fedretina.aggregation.results import results_table; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", words], check=True)


@pytest.mark.parametrize("words", [["--help"], ["show"], ["simulate", "spring.yaml"]])
def test_help_what_is_missing_and_a_fault_in_the_settings_are_told_without_torch(tmp_path, words):
    (tmp_path / "spring.yaml").write_text("name: spring\nrow: feduaa\nseeed: 2\n")
    code = "import sys; from fedretina.cli import main\ntry: main()\nfinally: print('torch' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.stdout.splitlines()[-1] == "False"
    assert (found.returncode == 0) == (words == ["--help"])
    assert words[0] != "simulate" or "seeed" in found.stderr


@pytest.mark.parametrize("job", ["feduaa", "feduaa_learner"])
def test_partition_of_the_committed_jobs(job):
    result = call("partition", JOBS / job / "app/config/experiment.yaml", "--grades", 6)
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.output.splitlines()}
    assert "travels" in lines["encoder"]
    for kind in ("norm", "statistic", "counter", "head"):
        assert "stays" in lines[kind]


def test_bad_settings_end_with_a_sentence(tmp_path):
    (tmp_path / "e.yaml").write_text("row: nothing\n")
    result = call("partition", tmp_path / "e.yaml")
    assert result.exit_code == 2
    assert "there is no row 'nothing'" in result.output


def test_a_file_that_is_no_settings_file_ends_with_a_sentence_and_no_exceptions_name(tmp_path):
    (tmp_path / "e.yaml").write_bytes("# Küche\nrow: feduaa\n".encode("latin-1"))
    (tmp_path / "twice.yaml").write_text("row: fedavg\nseed: 1\nrow: feduaa\n")
    (tmp_path / "tab.yaml").write_text("training:\n\tepochs: 1\n")
    for words, said in (
        (("partition", tmp_path / "e.yaml"), "e.yaml cannot be read: line 1 holds a character that is not UTF-8"),
        (("loop", tmp_path / "twice.yaml", "--run", "a"), "'row' is set twice, in lines 1 and 3: keep one of them."),
        (("methods", "--experiment", tmp_path / "tab.yaml"), "line 2, column 1 is no YAML"),
        (
            ("partition", tmp_path),
            f"the experiment file {tmp_path} cannot be read: it is a folder: name the file in it.",
        ),
        (("benchmark", "feduaa", "--plan", tmp_path / "tab.yaml", "--out", tmp_path / "b"), "the plan "),
    ):
        result = call(*words)
        assert result.exit_code == 2
        assert said in result.output
        assert "Error" not in result.output


@pytest.mark.attack("an accident", "a run or a site whose name leads out of its folder", "nothing is written anywhere")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("loop", "e.yaml", "--run", "../../esc/x"), "the run '../../esc/x' is not a plain name"),
        (("loop", "e.yaml", "--run", "a", "--sites", "../b"), "the site '../b' is not a plain name"),
        (("loop", "e.yaml", "--run", "a", "--site", "../b=site.yaml"), "the site '../b' is not a plain name"),
        (("loop", "e.yaml", "--run", "a", "--sites", "server"), "'server' is the server's name"),
        (("data", "phantom", "--site", "a/b", "--out", "o"), "the site 'a/b' is not a plain name"),
        (("data", "phantom", "--site", "", "--out", "o"), "the site '' is not a plain name"),
        (("data", "check", "e.yaml", "--site", "../b"), "the site '../b' is not a plain name"),
        (("data", "divide", "e.yaml", "--site", "../b", "--out", "o"), "the site '../b' is not a plain name"),
        (("job", "write", "feduaa", "--name", "../x"), "the job '../x' is not a plain name"),
        (("job", "write", "feduaa", "--sites", "a,b/c", "--out", "o"), "the site 'b/c' is not a plain name"),
        (("job", "export", JOBS / "feduaa", "--sites", "a", "--run", "../x", "--out", "o"), "the run '../x' is not a"),
        (("benchmark", "feduaa", "--site", "../b=site.yaml", "--out", "o"), "the site '../b' is not a plain name"),
        (("benchmark", "feduaa", "--phantoms", "a,../b", "--out", "o"), "the site '../b' is not a plain name"),
        (("show", "../x"), "the run '../x' is not a plain name"),
        (("report", "--site", "../x"), "the site '../x' is not a plain name"),
        (("submit", JOBS / "feduaa", "--run", "../x", "--kit", "."), "the run '../x' is not a plain name"),
        (("site", "ledger", ".", "--run", "../x"), "the run '../x' is not a plain name"),
    ],
)
def test_a_name_is_checked_before_anything_is_made(tmp_path, monkeypatch, words, said):
    work = tmp_path / "deep" / "work"
    work.mkdir(parents=True)
    monkeypatch.chdir(work)
    Path("e.yaml").write_text("row: feduaa\n")
    result = call(*words)
    assert result.exit_code == 2
    assert said in result.output
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["deep", "e.yaml", "work"]


@pytest.mark.attack("an accident", "a time limit that is none: nan, infinity, a negative number, 0", "it is refused")
@pytest.mark.parametrize(
    "words",
    [("submit", JOBS / "feduaa"), ("status",), ("watch",), ("results",), ("resume", "study")],
    ids=lambda words: words[0],
)
def test_a_time_that_is_none_is_refused_by_every_command_that_takes_one(words):
    for option, values in (("--timeout", ["nan", "inf", "-1", "0", "1e9", "soon"]), ("--connect-timeout", ["nan", 0])):
        for value in values:
            result = call(*words, "--kit", "kit", option, value)
            assert result.exit_code == 2
            least = "above 0" if option == "--timeout" else "from 1"
            said = f"{str(value)!r} is no such time: give a number of seconds {least} up to 31536000."
            assert said in " ".join(result.output.split())


@pytest.mark.parametrize(
    "words",
    [
        ("loop", "e.yaml", "--run", "a", "--sites", "site-1,site-1"),
        ("loop", "e.yaml", "--run", "a", "--site", "site-1=a.yaml", "--site", "site-1=b.yaml"),
        ("loop", "e.yaml", "--run", "a", "--site", "site-1=a.yaml", "--sites", "site-1"),
        ("job", "write", "feduaa", "--sites", "site-1,site-1"),
        ("job", "export", JOBS / "feduaa", "--sites", "site-1,site-1", "--out", "o"),
        ("job", "export", JOBS / "feduaa", "--sites", "site-1", "--mandatory", "site-1,site-1", "--out", "o"),
        ("benchmark", "feduaa", "--site", "site-1=a.yaml", "--site", "site-1=b.yaml", "--out", "o"),
        ("benchmark", "feduaa", "--phantoms", "site-1,site-1", "--out", "o"),
    ],
)
def test_a_site_that_is_named_twice_is_refused_by_every_command(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    Path("e.yaml").write_text("row: feduaa\n")
    result = call(*words)
    assert result.exit_code == 2
    assert "the site 'site-1' is named twice: name each site once." in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["e.yaml"]


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "e.yaml").write_text("phantom_images: 16\nimages: {image_size: 32}\n")
    (tmp_path / "file").touch()
    result = call("loop", tmp_path / "e.yaml", "--run", "a", "--sites", "site-1", "--root", tmp_path / "file" / "runs")
    assert result.exit_code == 2
    assert (
        f"the folder {tmp_path / 'file' / 'runs' / 'a' / 'server'} cannot be made or written (Not a dir"
        in result.output
    )


def test_a_row_by_name_has_the_settings_of_its_job():
    for row in ("feduaa", "fedee", "analytic"):
        job = Experiment.load(JOBS / row / "app" / "config" / "experiment.yaml")
        assert Experiment.resolve(yaml.safe_load(settings_of_row(row))) == job


def test_help_has_a_short_form_and_the_package_is_a_command():
    for words in ((), ("data",), ("data", "import"), ("kit", "harden"), ("loop",)):
        short = call(*words, "-h")
        assert short.exit_code == 0
        assert short.output == call(*words, "--help").output
    for module in ("fedretina",):
        done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
        first, beside = done.stdout.splitlines()
        assert first == f"fedretina, version {__version__}"
        for library in ("nvflare", "torch"):
            assert f"{library} {metadata.version(library)}" in beside


def hints():
    """What the package tells people to install: each `pip install` in its texts, by file."""
    for path in sorted((REPOSITORY / "custom").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert "fedretina[" not in node.value, f"{path} names a package that is on no index"
                for found in re.findall(r"pip install ((?:\"[^\"]+\" ?)+)", node.value):
                    yield path.name, tuple(re.findall(r"\"([^\"]+)\"", found))
                assert "pip install" not in re.sub(r"pip install \"", "", node.value), f"{path} names no bound"


def test_what_people_are_told_to_install_is_there_and_what_the_project_needs():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = {tuple(needed) for needed in project["optional-dependencies"].values()}
    single = {requirement for extra in extras for requirement in extra}
    found = list(hints())
    assert {name for name, _ in found} == {
        "curves.py",
        "dicom_file.py",
        "eye_answers.py",
        "receiver.py",
        "oct_volumes.py",
        "encryption.py",
        "tables.py",
        "command.py",
        "model.py",
        "onnx_file.py",
    }
    for name, packages in found:
        assert packages in extras or (len(packages) == 1 and packages[0] in single), name


def test_experiments_of_the_jobs_pass_the_one_reader():
    for job in JOBS.iterdir():
        assert Experiment.load(job / "app/config/experiment.yaml").row in ROWS


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_is_drawn_on_a_terminal_and_nowhere_else(monkeypatch):
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with steps() as tell:
            for what in ("files converted", "files compared"):
                for done in range(1, 4):
                    tell(what, done, 3)
            between = stream.getvalue()
        assert stream.getvalue() == between  # the last call has ended the bar, so what follows has its own line
        assert ("files converted" in between and "files compared" in between) == shown
        assert between.count("100%") == (2 if shown else 0)
        assert between.endswith("\n") or not shown


def test_a_machine_is_told_in_lines_of_json(tmp_path):
    import fedretina

    drawn = fedretina.draw_site("north", tmp_path / "north", images=24, size=64)
    words = ("data", "check", drawn, "--out", tmp_path / "checked")
    quiet, told = CliRunner().invoke(main, list(map(str, words))), CliRunner().invoke(
        main, ["--json-lines", *map(str, words[:-1]), str(tmp_path / "again")])  # fmt: skip
    assert (quiet.exit_code, told.exit_code) == (1, 1), told.output  # it has warnings
    *counted, written = map(json.loads, told.stderr.splitlines())
    assert {line["what"] for line in counted} == {"images"}
    assert [line["done"] for line in counted] == list(range(1, counted[-1]["of"] + 1))
    assert written == {"written": str(tmp_path / "again")}
    assert quiet.stderr == f"Written to {tmp_path / 'checked'}: it stays at the site.\n"
    assert told.stdout == quiet.stdout
    wrong = CliRunner().invoke(main, ["--json-lines", "simulate", "no_such_row"])
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "no row" in json.loads(wrong.stderr)["error"]
    many = [f"{number}" for number in range(1, 1001)]

    @click.command()
    def long():
        with progress("answers") as tell:
            for number in many:
                tell(int(number), len(many))

    assert len(CliRunner().invoke(_under_main(long), ["--json-lines", "long"]).stderr.splitlines()) == 101


def _under_main(command):
    group = type(main)(main.name, lazy=main._lazy, params=main.params, callback=main.callback)
    group.add_command(command)
    return group


@pytest.mark.parametrize("record", ['{"sites": {"a": 5}}', '{"kind": "site"}', '{"sites": {}}', "{", "[]"])
def test_a_record_that_is_damaged_is_said_and_no_traceback_comes(tmp_path, record):
    path = tmp_path / "runs" / "spring" / "server" / "results.json"
    path.parent.mkdir(parents=True)
    path.write_text(record)
    for words in (("show", "spring"), ("report", "spring")):
        result = call(*words, "--root", tmp_path / "runs")
        assert result.exit_code == 2
        assert result.output.startswith("fedretina: ")
        assert "Error" not in result.output
        assert isinstance(result.exception, SystemExit)
