"""Every name of FLARE that the project uses is there: what a new FLARE must pass before it is accepted on purpose."""

import ast
import importlib
import inspect
import json
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(
    path
    for folder in ("custom", "poc", "provisioning", "jobs", "tests", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
)
WIRED = sorted(
    path
    for folder in ("jobs", "provisioning", "poc")
    for kind in ("*.json", "*.yml")
    for path in (ROOT / folder).rglob(kind)
)
DOTTED = re.compile(r"nvflare(?:\.\w+)+\.[A-Z]\w*")
OF_OTHERS = {"tests/provisioned/jobs.py"}  # hostile jobs name classes of FLARE and some that are nowhere


def imported(tree):
    """What a file imports of FLARE: pairs of the name in the file and where it comes from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "nvflare":
            yield from ((alias.asname or alias.name, node.module, alias.name) for alias in node.names)


def resolve(module, name):
    """The object itself; an AttributeError or ImportError says what is gone."""
    found = importlib.import_module(module)
    return getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")


def class_path(path):
    module, _, name = path.rpartition(".")
    return resolve(module, name)


def using(files, pattern=re.compile("nvflare")):
    return [path for path in files if pattern.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("path", using(FILES), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_file_takes_from_flare_is_there(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {name: resolve(module, original) for name, module, original in imported(tree)}
    for node in ast.walk(tree):  # constants and class methods, such as FLContextKey.SCOPE_PROPERTIES
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            owner = names[node.value.id]
            assert hasattr(owner, node.attr), f"{node.value.id}.{node.attr}, line {node.lineno}"
    if path.relative_to(ROOT).as_posix() in OF_OTHERS:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            class_path(node.value)


def texts(value):
    """Every string of a file of JSON or YAML."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("path", using(WIRED, DOTTED), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_job_or_a_project_file_names_of_flare_is_there(path):
    read = json.loads if path.suffix == ".json" else yaml.safe_load
    named = [text for text in texts(read(path.read_text(encoding="utf-8"))) if DOTTED.fullmatch(text)]
    for text in named:
        class_path(text)


def ours():
    """Every class of the thin layer that stands on one of FLARE's."""
    folder = ROOT / "custom" / "fedretina" / "flare"
    for file in sorted(folder.glob("[!_]*.py")):
        module = importlib.import_module(f"fedretina.flare.{file.stem}")
        for cls in vars(module).values():
            own = inspect.isclass(cls) and cls.__module__ == module.__name__
            if own and any(base.__module__.startswith("nvflare.") for base in cls.__mro__):
                yield cls


@pytest.mark.parametrize("cls", list(ours()), ids=lambda cls: cls.__name__)
def test_what_our_classes_call_and_replace_of_their_base_is_there(cls):
    tree = ast.parse(inspect.getsource(cls))
    own = {name for base in cls.__mro__ if base.__module__.startswith("fedretina.") for name in vars(base)}
    assigned = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name)
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        func = node.func
        if isinstance(func.value, ast.Name) and func.value.id == "self" and func.attr not in own | assigned:
            assert hasattr(cls, func.attr), f"self.{func.attr}, line {node.lineno} of {cls.__name__}"
        if isinstance(func.value, ast.Call) and getattr(func.value.func, "id", "") == "super":
            assert any(hasattr(base, func.attr) for base in cls.__mro__[1:]), f"super().{func.attr} of {cls.__name__}"
