"""What is built is complete, says the same of itself everywhere, and starts from the wheel alone."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path
from tarfile import open as open_tar

import pytest
import yaml

from fedretina.storage import read_json
from fedretina.version import __version__

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (
    *("custom", "jobs", "provisioning", "poc", "docs", "tests", "benchmarks", ".ci", ".github"),
    *("README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "Makefile", "mkdocs.yml"),
    *("pyproject.toml", "requirements.lock", ".gitignore", ".pre-commit-config.yaml"),
)
MADE = re.compile(r"(^|/)(__pycache__|[^/]+\.egg-info)/|\.pyc$")
"""Files that tools leave in a checkout."""


def files_below(folder):
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {name for name in found if not MADE.search(name)}


def test_the_version_is_the_same_everywhere():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == __version__
    headings = re.findall(r"^## \[?([^\]\s]+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert next(name for name in headings if name != "Unreleased") == __version__
    wheels = re.findall(r"fedretina-([\d.]+)-py3", (ROOT / "docs" / "install.md").read_text(encoding="utf-8"))
    assert set(wheels) == {__version__}


def test_the_installation_page_knows_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    named = {name for row in re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert set(extras) - {"dev", "docs", "papers"} == named & set(extras)


def test_a_commit_is_checked_as_in_ci():
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = [" ".join([hook["entry"].replace(".venv/bin", "$(BIN)"), *hook.get("args", ())]) for hook in local["hooks"]]
    recipe = (ROOT / "Makefile").read_text().partition("\nlint: $(READY)\n")[2].partition("\n\n")[0]
    assert hooks == recipe.replace("\t", "").splitlines()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A copy of the sources, the archive that is built of it, and the wheel that is built of the archive."""
    copy = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, copy)
    before = files_below(copy)
    out = tmp_path_factory.mktemp("dist")
    run("-m", "build", "--no-isolation", "--outdir", out, copy)
    (archive,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    run("-m", "twine", "check", "--strict", archive, wheel)
    return before, archive, wheel


def run(*words, **options):
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_source_archive_is_the_whole_repository(built):
    before, archive, _ = built
    with open_tar(archive) as opened:
        names = {member.name.partition("/")[2] for member in opened.getmembers() if member.isfile()}
    made = {"PKG-INFO", "setup.cfg"}
    assert {name for name in names if not MADE.search(name)} - made == before


@pytest.mark.slow
def test_the_wheel_alone_runs_the_demo(built, tmp_path):
    _, _, wheel = built
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as opened:  # what pip does with a wheel of Python alone; uv's environments have no pip
        opened.extractall(installed)
    package = {f"fedretina/{name}" for name in files_below(ROOT / "custom" / "fedretina")}
    info = f"fedretina-{__version__}.dist-info/"
    assert {name for name in files_below(installed) if not name.startswith(info)} == package
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FEDRETINA_")}
    environment["PYTHONPATH"] = str(installed)
    where = {"cwd": tmp_path, "env": environment}
    assert run("-c", "import fedretina; print(fedretina.__file__)", **where).startswith(str(installed))
    (itself,) = distributions(name="fedretina", path=[str(installed)])
    (entry,) = itself.entry_points
    assert (entry.name, entry.value) == ("fedretina", "fedretina.cli:main")
    told = run("-m", "fedretina", "demo", "--quick", **where)
    results = read_json(tmp_path / "fedretina_runs" / "demo_quick" / "server" / "results.json")
    assert list(results["sites"]) == ["site-1", "site-2"]
    assert f"run demo_quick, model of {results['chosen']}, digest {results['model_digest'][:12]}" in told
    assert (tmp_path / "fedretina_runs" / "demo_quick" / "site-1" / "final" / "report.html").exists()
