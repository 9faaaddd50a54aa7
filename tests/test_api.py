"""What `import fedretina` gives: the names of docs/api.md, loaded late, and doing what the page prints."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from docs.render_api import render

import fedretina
from fedretina.prediction.photographs import find_photographs

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "api.md"
PUBLIC = [name for name in fedretina.__all__ if name != "__version__"]


def python(code, folder):
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fences(language):
    head = PAGE.read_text(encoding="utf-8").split("## Reference")[0]
    return [part.split("```")[0] for part in head.split(f"```{language}\n")[1:]]


def test_every_public_name_is_described_and_loaded_from_where_the_types_say(tmp_path):
    tree = ast.parse(Path(fedretina.__file__).read_text(encoding="utf-8"))
    typed = next(node for node in tree.body if isinstance(node, ast.If))
    said = {alias.name: node.module for node in typed.body for alias in node.names}
    assert said == fedretina._PLACES
    assert sorted(said) == sorted(PUBLIC)
    assert dir(fedretina) == sorted(fedretina.__all__)
    assert (Path(fedretina.__file__).parent / "py.typed").is_file()
    for name in PUBLIC:
        assert getattr(fedretina, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'Coordinator'"):
        fedretina.Coordinator  # noqa: B018
    page = PAGE.read_text(encoding="utf-8")
    assert render(page) == page, "run `python docs/render_api.py`"


def test_nothing_heavy_comes_with_the_import(tmp_path):
    loaded = python("import sys, fedretina; dir(fedretina); print(*sys.modules)", tmp_path).split()
    assert {"torch", "numpy", "pydantic", "yaml", "nvflare"}.isdisjoint(loaded)


def test_the_page_prints_what_it_says(tmp_path, monkeypatch, capsys, little_encoder):
    monkeypatch.chdir(tmp_path)
    exec("\n".join(fences("python")), {})
    assert capsys.readouterr().out == "".join(fences("text"))


def test_what_cannot_be_drawn_or_opened_is_said(tmp_path):
    for words, sentence in (
        ({"images": 3}, "images is 3: give 16 or more."),
        ({"size": 4096}, "size is 4096: give 32 or more, at most 1024."),
        ({"name": "../x"}, "not a plain name"),
    ):
        with pytest.raises(fedretina.FedretinaError, match=sentence):
            fedretina.draw_site(**{"name": "north", "folder": tmp_path / "north", **words})
    assert not list(tmp_path.iterdir())
    real = fedretina.Experiment.resolve({"phantom_images": 0})
    with pytest.raises(fedretina.FedretinaError, match="north has no data"):
        fedretina.load_site("north", real)
    with pytest.raises(fedretina.FedretinaError, match="holds no photograph"):
        fedretina.predict(type("Model", (), {"of_signals": False, "find": staticmethod(find_photographs)})(), tmp_path)
