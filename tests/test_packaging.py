"""What is built is complete, says the same of itself everywhere, and starts from the wheel alone."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distributions, packages_distributions
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


def test_no_test_is_skipped_for_want_of_what_is_always_installed():
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    always = {re.match(r"[\w-]+", words)[0] for words in needed}
    owners = packages_distributions()
    for path in (ROOT / "tests").rglob("*.py"):
        for module in re.findall(r'importorskip\("(\w+)', path.read_text(encoding="utf-8")):
            assert module != "fedretina", path
            assert not always & set(owners.get(module, ())), (path, module)


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


def little_wheel(folder, name):
    """A wheel of one module."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "here = True\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            archive.writestr(inside, text)
    return path


def little_sources(folder, name):
    """An archive of sources of one module, of which pip makes a wheel."""
    root = folder / "sources" / f"{name}-1.0"
    root.mkdir(parents=True)
    (root / f"{name}.py").write_text("here = True\n")
    (root / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    build = "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n"
    project = f"[project]\nname = '{name}'\nversion = '1.0'\n[tool.setuptools]\npy-modules = ['{name}']\n"
    (root / "pyproject.toml").write_text(build + project)
    path = folder / f"{name}-1.0.tar.gz"
    with open_tar(path, "w:gz") as archive:
        archive.add(root, root.name)
    return path


@pytest.mark.slow
def test_a_wheelhouse_installs_without_a_network_and_refuses_a_file_that_was_changed(built, tmp_path):
    pytest.importorskip("pip", reason="this environment has no pip")
    _, _, wheel = built
    index = tmp_path / "index"
    index.mkdir()
    files = [little_wheel(index, "blue"), little_sources(index, "green")]
    hashes = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    lock = tmp_path / "small.lock"
    lock.write_text("".join(f"{path.name[:-7].split('-')[0]}==1.0 --hash=sha256:{hashes[path]}\n" for path in files))
    # pip's own settings: no network, the little index, and setuptools from this environment.
    by_hand = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_NO_BUILD_ISOLATION": "0"}
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHONPATH"))}
    house, make = tmp_path / "house", ("-m", "fedretina", "wheelhouse")
    where = {"cwd": ROOT, "env": {**plain, **by_hand, "PYTHONPATH": str(ROOT / "custom")}}
    told = run(*make, house, "--lock", lock, **where)  # of this repository
    listed = (house / "requirements.txt").read_bytes()
    assert told.splitlines() == [
        f"3 wheels, {sum(path.stat().st_size for path in house.glob('*.whl')) / 1e6:.0f} MB, in {house}; "
        "`sh install.sh ENVIRONMENT` installs them.",
        f"sha256 of requirements.txt: {hashlib.sha256(listed).hexdigest()}",
    ]
    assert [line.partition("==")[0] for line in listed.decode().splitlines()] == ["blue", "fedretina", "green"]
    assert hashes[files[1]] not in listed.decode()  # green came as sources, and travels as a wheel
    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(house / wheel.name) as theirs:
        assert set(theirs.namelist()) == set(ours.namelist())

    def install(folder):
        call = ["sh", house / "install.sh", folder]
        return subprocess.run(call, capture_output=True, text=True, env=plain, umask=0o077, check=False)

    done = install(tmp_path / "installed")
    assert done.stdout.startswith(f"Looking in links: {house}\n")
    # All is there but what the small lock leaves out, which the script's own last line says.
    assert "fedretina" in done.stdout
    assert "requires torch, which is not installed" in done.stdout, done.stdout + done.stderr
    for path in (tmp_path / "installed", *(tmp_path / "installed").rglob("version.py")):
        assert path.stat().st_mode & 0o044 == 0o044, path  # the service's user reads it, whatever root's umask is
    code = "import blue, green, fedretina.version; print(fedretina.version.__version__)"
    python = tmp_path / "installed" / "bin" / "python"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, env=plain, cwd=tmp_path, check=False)
    assert found.stdout.strip() == __version__, found.stderr
    with zipfile.ZipFile(house / "blue-1.0-py3-none-any.whl", "a") as archive:
        archive.writestr("more.py", "there = True\n")
    subprocess.run([python, "-m", "pip", "uninstall", "--yes", "blue"], capture_output=True, env=plain, check=True)
    refused = install(tmp_path / "installed")
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr, refused.stdout + refused.stderr
    for words, said in (
        ((house, "--lock", lock, "--package", wheel), "is there and not empty"),
        ((tmp_path / "new", "--lock", tmp_path / "none.lock"), "there is no lock"),
        ((tmp_path / "new", "--lock", lock, "--package", tmp_path), "is no wheel and no repository's folder"),
    ):
        call = [sys.executable, *make, *words]
        assert said in subprocess.run(call, capture_output=True, text=True, check=False, **where).stderr
    words = [*make[:2], "--json-lines", *make[2:], tmp_path / "from-a-wheel", "--lock", lock, "--package", wheel]
    counted = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=True, **where)
    told = [json.loads(line) for line in counted.stderr.splitlines()]
    assert told == [{"what": "packages", "done": done, "of": 2} for done in range(3)]
    assert (tmp_path / "from-a-wheel" / wheel.name).read_bytes() == wheel.read_bytes()
    lock.write_text(lock.read_text().replace(hashes[files[0]], "0" * 64))
    call = [sys.executable, *make, tmp_path / "new", "--lock", lock, "--package", wheel]
    failed = subprocess.run(call, capture_output=True, text=True, check=False, **where)
    assert "pip wheel ended with code 1" in failed.stderr
    assert not (tmp_path / "new").exists()
    assert "DO NOT MATCH THE HASHES" in failed.stderr
