"""What may stand on what: the product without the papers, the core without FLARE."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedretina.cli import main

CUSTOM = Path(__file__).resolve().parents[1] / "custom"
PRODUCT = sorted((CUSTOM / "fedretina").rglob("*.py"))


def imports(path):
    """Every module that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def importing(package, files):
    return [
        path.relative_to(CUSTOM).as_posix()
        for path in files
        if any(name == package or name.startswith(f"{package}.") for name in imports(path))
    ]


def test_the_product_imports_nothing_of_the_papers():
    assert not importing("fedretina_papers", PRODUCT)


def test_the_core_imports_nothing_of_flare():
    core = [path for path in PRODUCT if path.parent != CUSTOM / "fedretina" / "flare"]
    assert importing("nvflare", core) == []
    ours = importing("fedretina.flare", [path for path in core if "cli" not in path.parts])
    assert ours == []


HEAVY = {"torch", "torchvision", "numpy", "scipy", "sklearn", "monai", "cv2", "PIL", "pydantic", "nvflare"}
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
    assert HEAVY.isdisjoint(loaded)


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
