"""From one built version to the next and back, by the installed command itself, killed at each step."""

import base64
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from hospital import write_hospital
from simulation import PARTS, SMALL

from federation import LEAD, REPOSITORY, copy_kit, environment, fedretina
from fedretina.errors import DataError, NotFoundError, SettingsError, StateError
from fedretina.kit.check import HARDEN
from fedretina.kit.releases import Releases, Wheels
from fedretina.kit.startup_kit import open_kit
from fedretina.kit.upgrade import RECORD, Upgrade
from fedretina.locks import folder_lock
from fedretina.storage import write_json

pytestmark = pytest.mark.provisioned
OLD, NEW = "0.2.98", "0.2.99"

# The command, which does something to itself just before one of its steps: argv[1] names the step, argv[2] what.
DISTURBED = """
import os, pathlib, signal, subprocess, sys
from fedretina import storage
from fedretina.cli import main
step, what = sys.argv[1:3]
def disturb(now):
    if now == step:
        os.mkdir(what) if what else os.kill(os.getpid(), signal.SIGKILL)
def before(module, name, step_of):
    real = getattr(module, name)
    def instead(*words, **more):
        disturb(step_of(*words))
        return real(*words, **more)
    setattr(module, name, instead)
before(subprocess, "run", lambda words, *rest: next((word for word in ("pip", "harden") if word in words), None))
before(os, "replace", lambda source, there: "switch" if pathlib.Path(there).name == "fedretina" else None)
before(storage, "_replace", lambda path, *rest: "record" if path.name == "upgrade.json" else None)
before(pathlib.Path, "unlink", lambda path, *rest: "forget" if path.name == "upgrade.json" else None)
main(sys.argv[3:])
"""


def build(out):
    """The wheel of this checkout, as the older version."""
    source = out / "source"
    source.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    package = REPOSITORY / "custom" / "fedretina"
    shutil.copytree(package, source / "custom/fedretina", ignore=shutil.ignore_patterns("__pycache__"))
    path = source / "custom" / "fedretina" / "version.py"
    path.write_text(path.read_text().replace('__version__ = "', f'__version__ = "{OLD}"  # "'))
    path = source / "custom" / "fedretina" / "kit" / "hardened.py"
    path.write_text(path.read_text().replace('_TEMPORARY = ("/tmp"', '_TEMPORARY = ("/tmp/nvflare"'))  # as `lasting`
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob(f"fedretina-{OLD}-*.whl"))


def following(wheel, out):
    """The wheel of the newer version, made from that of the older: it hardens with a component of its own."""
    folder = out / "unpacked"
    with zipfile.ZipFile(wheel) as old:
        old.extractall(folder)
    package, info = folder / "fedretina", folder / f"fedretina-{NEW}.dist-info"
    (folder / f"fedretina-{OLD}.dist-info").rename(info)
    for path, words in ((package / "version.py", '__version__ = "{}"'), (info / "METADATA", "\nVersion: {}\n")):
        text = path.read_text()
        assert text.count(words.format(OLD)) == 1
        path.write_text(text.replace(words.format(OLD), words.format(NEW)))
    (package / "flare" / "later.py").write_text("from fedretina.flare.audit_events import AuditEvents as AuditEvents\n")
    path = package / "kit" / "hardened.py"
    path.write_text(path.read_text().replace("fedretina.flare.audit_events.", "fedretina.flare.later."))
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "RECORD"]
    record = info / "RECORD"
    record.write_text(
        "".join(f"{path.relative_to(folder)},{listed(path)}\n" for path in files) + f"{info.name}/RECORD,,\n"
    )
    made = out / wheel.name.replace(OLD, NEW)
    with zipfile.ZipFile(made, "w") as new:
        for path in (*files, record):
            new.write(path, path.relative_to(folder))
    return made


def listed(path):
    """A file's hash and size, as a wheel's list of its files has them."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode().rstrip("=")
    return f"sha256={digest},{path.stat().st_size}"


def libraries(out):
    """A wheel that stands for all others: it names the folders where this machine's packages lie."""
    path = out / "libraries-1-py3-none-any.whl"
    info = "libraries-1.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        folders = [folder for folder in sys.path if folder.endswith("site-packages")]
        wheel.writestr("libraries.pth", "\n".join([*folders, str(PARTS)]) + "\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: libraries\nVersion: 1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def require(out, *wheels):
    """The list of packages with their hashes."""
    lines = []
    for path in wheels:
        name, version = path.name.split("-")[:2]
        lines.append(f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}")
    (out / "requirements.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def hospital(tmp_path_factory, lasting):
    write_hospital(tmp_path_factory.mktemp("hospital") / "data", 4, 7, state_root="runs")
    return tmp_path_factory.getbasetemp() / "hospital0" / "data"


@pytest.fixture(scope="module")
def fresh(workspace, hospital):
    """A hardened site's kit, and those that it came with."""
    kits = workspace(hospital.parent) / "prod_00"
    fedretina("kit", "harden", kits / "site-1", "--site-file", hospital / "site.yaml")
    return kits


def test_from_one_version_to_the_next_and_back(fresh, hospital, tmp_path):
    kit = copy_kit(fresh / "site-1", tmp_path / "kit")
    others, wheels = tmp_path / "others", tmp_path / "wheels"
    wheels.mkdir()
    first = build(others)
    second = Path(shutil.move(following(first, others), wheels))
    used = tmp_path / "opt" / "fedretina"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", used], check=True)
    install = ["install", "--quiet", "--no-deps", "--no-index", libraries(wheels), first]
    subprocess.run([sys.executable, "-m", "pip", "--python", used / "bin" / "python", *install], check=True)
    before = (kit / "local" / "resources.json").read_text()
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(SMALL))
    shell = environment(tmp_path)
    del shell["PYTHONPATH"]

    def command(*words, step="", what=""):
        program = [used / "bin" / "python", "-c", DISTURBED, step, what, *words]
        return subprocess.run(list(map(str, program)), env=shell, capture_output=True, text=True, check=False)

    def upgrade(**disturbed):
        options = ("--offline", "--experiment", tmp_path / "experiment.yaml")
        return command("site", "upgrade", kit, "--from", wheels, "--to", NEW, *options, **disturbed)

    def works(version):
        """The version in use starts, and finds nothing in the kit but what it would harden otherwise."""
        assert (
            next(used.glob("lib/python*/site-packages/fedretina-*.dist-info")).name == f"fedretina-{version}.dist-info"
        )
        found = json.loads(command("kit", "check", kit, "--json").stdout)
        assert all(line["mend"].startswith(HARDEN) for line in found if line["good"] is False), found

    require(wheels, libraries(wheels), second)
    assert upgrade(step="pip").returncode == -signal.SIGKILL
    works(OLD)
    (wheels / "requirements.txt").write_text((wheels / "requirements.txt").read_text()[:-5] + "0000\n")
    told = upgrade()
    assert told.returncode == 2
    assert "nothing in use was touched" in told.stderr
    assert "THE REQUIREMENTS FILE" in told.stderr  # the end of what pip says of hashes that do not match
    require(wheels, libraries(wheels), second)
    told = upgrade(step="harden", what=str(kit / "local" / "custom"))  # somebody lays code into the kit meanwhile
    assert told.returncode == 2
    assert f"{OLD} is in place again, as it was" in told.stderr, told.stderr
    assert "every package was held against its hash" in told.stdout
    (kit / "local" / "custom").rmdir()
    assert (kit / "local" / "resources.json").read_text() == before
    assert used.is_symlink()
    assert not (tmp_path / "opt" / "fedretina-releases" / OLD).is_symlink()
    assert upgrade(step="switch").returncode == -signal.SIGKILL
    works(OLD)
    assert upgrade(step="harden").returncode == -signal.SIGKILL
    works(NEW)
    assert (kit / "local" / "resources.json").read_text() == before
    assert upgrade(step="record").returncode == -signal.SIGKILL
    works(NEW)
    told = upgrade()
    assert told.returncode == 0, told.stderr
    assert "was cut off after its switch" in told.stdout
    assert "fedretina.flare.later" in (kit / "local" / "resources.json").read_text()
    assert f"{NEW} is the version in use" in upgrade().stderr

    (kit / "local" / "log_config.json").write_text("{}")  # the hospital's own change
    (kit / "local" / "log_config.json").chmod(0o600)
    assert command("site", "upgrade", kit, "--roll-back", step="switch").returncode == -signal.SIGKILL
    works(NEW)
    assert (kit / "local" / "resources.json").read_text() == before
    assert command("site", "upgrade", kit, "--roll-back", step="forget").returncode == -signal.SIGKILL
    works(OLD)
    told = command("site", "upgrade", kit, "--roll-back")
    assert told.returncode == 0, told.stderr
    assert "left as they are: local/log_config.json" in told.stdout
    assert (kit / "local" / "log_config.json").read_text() == "{}"
    assert "knows of no upgrade" in command("site", "upgrade", kit, "--roll-back").stderr
    told = command("site", "check", kit, "--offline", "--experiment", tmp_path / "experiment.yaml")
    assert told.returncode == 0, told.stdout


@pytest.fixture
def way(fresh, tmp_path):
    """An upgrade of a kit of its own; nothing is installed."""
    used = tmp_path / "opt" / "fedretina"
    used.mkdir(parents=True)
    kit = open_kit(copy_kit(fresh / "site-1", tmp_path / "kit"))
    return lambda **more: Upgrade(kit, Releases(used), lambda step, words: None, **more)


@pytest.fixture
def wheels(tmp_path):
    (tmp_path / "wheels").mkdir()
    for version in (OLD, NEW):
        (tmp_path / "wheels" / f"fedretina-{version}-py3-none-any.whl").touch()
    return tmp_path / "wheels"


def test_what_the_folder_must_hold(wheels, tmp_path):
    assert Wheels(wheels, NEW).version == NEW
    with pytest.raises(SettingsError, match="choose one with --to"):
        Wheels(wheels)
    with pytest.raises(SettingsError, match="and not 7"):
        Wheels(wheels, "7")
    with pytest.raises(SettingsError, match="holds no wheel of fedretina"):
        Wheels(tmp_path)


def test_a_site_that_runs_or_works_on_a_run_is_not_upgraded(way, wheels, hospital, tmp_path):
    words = [sys.executable, "-c", "input()", "-m", "nvflare.private.fed.app.client.client_train", tmp_path / "kit"]
    with subprocess.Popen(words, stdin=subprocess.PIPE), pytest.raises(DataError, match="systemctl stop"):
        way(anyway=True).to(Wheels(wheels, NEW))
    with (
        folder_lock(hospital / "runs" / "spring" / "site-1", 0),
        pytest.raises(DataError, match="still works on run spring"),
    ):
        way(anyway=True).to(Wheels(wheels, NEW))
    shutil.rmtree(hospital / "runs")


def test_the_folder_of_releases_is_open_to_the_service_whatever_roots_umask_is(tmp_path):
    before = os.umask(0o077)
    Releases(tmp_path / "fedretina").prepare()
    os.umask(before)
    folder = tmp_path / "fedretina-releases"
    assert folder.stat().st_mode & 0o777 == 0o755
    folder.chmod(0o750)
    Releases(tmp_path / "fedretina").prepare()
    assert folder.stat().st_mode & 0o777 == 0o750  # one that its owner has closed stays so


def test_a_link_that_cannot_be_written_is_said_and_stays(tmp_path):
    releases = Releases(tmp_path / "fedretina")
    releases.used.symlink_to(releases.release(OLD))
    (tmp_path / ".fedretina.next").mkdir()  # in the way of the new link
    with pytest.raises(StateError, match=r"the link .*fedretina cannot be written .*\.next.*; it is as it was"):
        releases.switch(NEW)
    assert releases.used.readlink() == releases.release(OLD)


def test_a_run_that_did_not_end_is_named_and_can_be_given_up(way, wheels, hospital, tmp_path):
    run = hospital / "runs" / "spring" / "site-1"
    run.mkdir(parents=True)
    (run / "state.json").write_text("{}")
    (tmp_path / "opt" / "fedretina-releases").mkdir()
    record = {"kit": str(tmp_path / "kit"), "from": OLD, "to": NEW, "before": {}, "after": {}}
    write_json(tmp_path / "opt" / "fedretina-releases" / RECORD, record)
    with pytest.raises(StateError, match=f"spring; a run ends with the version that began it, and {NEW}"):
        way().to(Wheels(wheels, NEW))
    with pytest.raises(StateError, match=f"fedretina {OLD} cannot end what {NEW} began"):
        way().back()
    (run / "final").mkdir()
    with pytest.raises(DataError, match="cannot be made"):
        way().to(Wheels(wheels, NEW), python=Path("/bin/false"))
    shutil.rmtree(hospital / "runs")


def test_a_version_that_was_removed_is_not_gone_back_to(way, wheels, tmp_path):
    folder, resources = tmp_path / "opt" / "fedretina-releases", tmp_path / "kit" / "local" / "resources.json"
    folder.mkdir()
    (tmp_path / "opt" / "fedretina").rmdir()
    (tmp_path / "opt" / "fedretina").symlink_to(folder / NEW)
    now = resources.read_text()
    before = {"local/resources.json": "{}"}
    after = {"local/resources.json": hashlib.sha256(now.encode()).hexdigest()}
    record = {"kit": str(tmp_path / "kit"), "from": OLD, "to": NEW, "before": before, "after": after}
    for words in (record, {**record, "after": None}):  # ended, and cut off after its switch
        write_json(folder / RECORD, words)
        with pytest.raises(DataError, match=f"{OLD} cannot be put in place again.*WHEELS/install.sh {folder / OLD}`"):
            way().back()
        assert resources.read_text() == now
        assert (tmp_path / "opt" / "fedretina").readlink() == folder / NEW
        assert (folder / RECORD).exists()
    with pytest.raises(DataError, match=f"(?s){OLD} cannot be put in place again.*cannot be hardened by {NEW}"):
        way().to(Wheels(wheels, NEW))  # the new version does not start either, so the kit would go back
    assert resources.read_text() == now


def test_what_stands_against_an_upgrade_is_said_before_anything_is_written(way, wheels, fresh, tmp_path, monkeypatch):
    with pytest.raises(NotFoundError, match="knows of no upgrade"):
        way().back()
    with pytest.raises(SettingsError, match="kit of an admin"):
        Upgrade(open_kit(fresh / LEAD), Releases(tmp_path / "opt"), print)
    monkeypatch.setattr(Releases, "room", lambda self: 1)
    with pytest.raises(DataError, match=r"has 0\.0 GB free"):
        way().to(Wheels(wheels, NEW))
    monkeypatch.undo()
    resources = tmp_path / "kit" / "local" / "resources.json"
    kept = resources.read_text()
    resources.write_text(kept.replace("fedretina.flare.status_page.", "fedretina.flare.gone."))
    with pytest.raises(DataError, match=r"1 component that this version does not have: fedretina\.flare\.gone"):
        way().to(Wheels(wheels, NEW))
    resources.write_text(kept)
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    with pytest.raises(SettingsError, match="no environment of its own"):
        Releases.of_this_process()
    monkeypatch.setattr(sys, "prefix", "/opt/fedretina-releases/1.0")
    assert Releases.of_this_process().used == Path("/opt/fedretina")
    assert "say --from FOLDER" in fedretina("site", "upgrade", tmp_path / "kit", code=2)
