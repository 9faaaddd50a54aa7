"""What may stand on what: the product without the papers, the core without FLARE."""

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.kit import hardened, proxy
from fedretina.loop import run_loop

CUSTOM = Path(__file__).resolve().parents[1] / "custom"
PRODUCT = sorted((CUSTOM / "fedretina").rglob("*.py"))


def imports(path, typing=True):
    """Every module that a file imports, wherever in it; those for types alone only where they are asked for."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unseen = set()
    for found in ast.walk(tree):
        if not typing and isinstance(found, ast.If) and getattr(found.test, "id", "") == "TYPE_CHECKING":
            unseen |= {id(node) for node in ast.walk(found)}
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.ImportFrom):
            yield from _named(node)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _named(node):
    """`from package import module` imports the module, `from module import name` what the name is defined in."""
    module = node.module or ""
    for alias in node.names:
        below = CUSTOM / module.replace(".", "/") / alias.name
        yield f"{module}.{alias.name}" if below.is_dir() or below.with_suffix(".py").exists() else module


def importing(package, files):
    return [
        path.relative_to(CUSTOM).as_posix()
        for path in files
        if any(name == package or name.startswith(f"{package}.") for name in imports(path))
    ]


def test_the_product_imports_nothing_of_the_papers():
    assert not importing("fedretina_papers", PRODUCT)


def test_the_core_imports_nothing_of_flare():
    recipes = CUSTOM / "fedretina" / "recipes.py"  # FLARE's own way in, by the name that FLARE's people look for
    core = [path for path in PRODUCT if path.parent != CUSTOM / "fedretina" / "flare" and path != recipes]
    assert importing("nvflare", core) == []
    ours = importing("fedretina.flare", [path for path in core if "cli" not in path.parts])
    assert ours == []


HELP_OF_ALL = """
import sys, click
from fedretina.cli import main
def show(command, name, parent):
    context = click.Context(command, info_name=name, parent=parent)
    command.get_help(context)
    shown.append(name)
    for below in command.list_commands(context) if isinstance(command, click.Group) else ():
        show(command.get_command(context, below), below, context)
shown = []
show(main, "fedretina", None)
print(len(shown), *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_the_help_of_every_command_waits_for_nothing_heavy():
    called = subprocess.run([sys.executable, "-c", HELP_OF_ALL], capture_output=True, text=True, check=True)
    shown, *loaded = called.stdout.split()
    assert int(shown) >= 30
    assert {*HEAVY, "pydantic", "yaml"}.isdisjoint(loaded)


@pytest.mark.parametrize(("call", "code"), [(["--help"], 0), (["benchmark", "feduaa"], 2)])
def test_without_the_papers_the_rest_works_and_their_command_says_so(monkeypatch, call, code):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "fedretina_papers" else find(name))
    group = type(main)(main.name, lazy=main._lazy, absent={"fedretina_papers": "a checkout brings them."})
    said = CliRunner().invoke(group, call)
    assert said.exit_code == code, said.output
    assert ("benchmark" in said.stdout) is False
    if code:
        assert "a checkout brings them." in said.output


def unit(module):
    """The folder, or the file beside the folders, that a module of the product stands in."""
    return module.split(".")[1] if "." in module else module


def test_no_folder_stands_on_one_that_stands_on_it():
    below = defaultdict(set)
    for path in PRODUCT:
        own = unit(".".join(path.relative_to(CUSTOM).with_suffix("").parts))
        below[own] |= {unit(name) for name in imports(path, typing=False) if name.startswith("fedretina.")} - {own}
    reached = {own: set(below[own]) for own in list(below)}
    for middle in list(reached):  # Warshall's closure
        for beyond in reached.values():
            beyond.update(reached[middle] if middle in beyond else ())
    assert sorted(own for own, beyond in reached.items() if own in beyond) == []


LEAF = {"errors", "rows", "settings", "version", "yaml_file"}  # what the settings stand on


def test_the_settings_are_a_leaf():
    for path in sorted((CUSTOM / "fedretina" / "settings").glob("*.py")):
        found = {unit(name) for name in imports(path) if name.startswith("fedretina.")}
        assert found <= LEAF, path.name


HEAVY = ["torch", "numpy", "scipy", "monai", "cv2", "PIL", "nvflare"]
LOADED = f"print(*sorted(set({HEAVY}) & set(sys.modules)), sep=chr(10))"


def fresh(code, *arguments):
    """Run code in a process that sees no package of another test."""
    call = [sys.executable, "-c", code, *arguments]
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(call, capture_output=True, text=True, timeout=100, check=False, env=plain)


def test_importing_the_settings_loads_no_torch():
    modules = [f"fedretina.settings.{path.stem}" for path in (CUSTOM / "fedretina" / "settings").glob("[a-z]*.py")]
    said = fresh(f"import sys, {', '.join(modules)}; {LOADED}")
    assert (said.returncode, said.stdout.split()) == (0, []), said.stderr


def test_the_lasting_process_of_a_site_or_server_loads_no_torch():
    """Its memory and its start are a hospital's; a job's process has torch, and ends."""
    parts = [*hardened.ONE_MACHINE.values(), hardened.PAGE, hardened.AUDIT, hardened.DEPLOYER, hardened.VALIDATOR]
    modules = {str(path).rpartition(".")[0] for path in (*(part["path"] for part in parts), proxy.COMPONENT)}
    said = fresh(f"import sys, {', '.join(sorted(modules))}; {LOADED}")
    assert (said.returncode, set(said.stdout.split()) & {"torch", "monai", "scipy", "cv2"}) == (0, set()), said.stderr


LOOKS = f"""
import sys
from fedretina.cli import main
for words in (["--help"], ["methods"], ["methods", "--json"], ["show", "--root", sys.argv[1]]):
    main(words, standalone_mode=False)
print("LOADED")
{LOADED}
"""


def test_what_only_looks_loads_no_torch(tiny, phantoms, tmp_path):
    experiment = tiny(phases=[{"name": "train", "rounds": 1}])
    run_loop(experiment, phantoms(experiment, "site-1", "site-2"), tmp_path / "runs", "spring")
    said = fresh(LOOKS, str(tmp_path / "runs"))
    shown, _, loaded = said.stdout.partition("LOADED\n")
    assert (said.returncode, loaded.split()) == (0, []), said.stderr
    assert "site-2" in shown


COMMAND = f"""
import sys
from fedretina.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    {LOADED}
    sys.exit(end.code)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["loop", "experiment.yaml", "--run", "new"],
        ["simulate", "experiment.yaml"],
        ["partition", "experiment.yaml"],
        ["methods", "--experiment", "experiment.yaml"],
        ["job", "export", "job", "--sites", "a,b", "--out", "out"],
    ],
    ids=lambda words: words[0],
)
def test_a_typo_is_told_before_torch_is_loaded(tmp_path, words):
    config = tmp_path / "job" / "app" / "config"
    shutil.copytree(CUSTOM.parent / "jobs" / "feduaa", tmp_path / "job")
    for place in (tmp_path, config):
        (place / "experiment.yaml").write_text("row: fedbn\ntrainig: {epochs: 2}\n")
    here = [str(tmp_path / word) if word in ("experiment.yaml", "job", "out") and at else word
            for at, word in enumerate(words)]  # fmt: skip
    said = fresh(COMMAND, *here)
    assert "trainig is no setting: did you mean training?" in said.stderr
    assert (said.returncode, said.stdout.split()) == (2, [])
