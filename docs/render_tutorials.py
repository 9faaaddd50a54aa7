"""Runs the notebooks of docs/tutorials and writes what they print into them.

.venv/bin/python docs/render_tutorials.py [NOTEBOOK ...]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parent / "tutorials"


def run(notebook: Path, folder: str | os.PathLike[str]) -> list[str]:
    """What each cell of code prints on its standard output, of a notebook that runs in an empty folder.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell fails.
    """
    found: Any = nbformat.read(notebook, as_version=4)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FEDRETINA_")}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    environment["IPYTHONDIR"] = str(Path(folder) / ".ipython")  # not that of whoever renders
    client = NotebookClient(found, timeout=600, resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment, cleanup_kc=True)
    printed = []
    for cell in found.cells:
        if cell.cell_type == "code":
            shown = [output for output in cell.outputs if output.output_type == "stream" and output.name == "stdout"]
            printed.append("".join(output.text for output in shown))
    return printed


def stored(notebook: Path) -> list[str]:
    """What each cell of code printed when the notebook was rendered."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join("".join(o["text"]) for o in cell["outputs"]) for cell in cells if cell["cell_type"] == "code"]


def render(notebook: Path) -> None:
    """Write what a notebook prints into it; its cells and nothing of the machine."""
    with tempfile.TemporaryDirectory() as folder:
        printed = iter(run(notebook, folder))
    content = json.loads(notebook.read_text(encoding="utf-8"))
    for cell in content["cells"]:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            text = next(printed)
            lines = text.splitlines(keepends=True)
            cell["execution_count"] = None
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    content["metadata"] = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    notebook.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for each in map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(NOTEBOOKS.glob("*.ipynb")):
        render(each)
