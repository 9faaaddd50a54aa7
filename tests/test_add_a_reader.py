"""The page docs/add_a_reader.md, followed to the letter in a copy of the package."""

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from test_docs import ROOT, blocks, in_subprocess

PAGE = "add_a_reader.md"
BETWEEN = "--- next\n"
# All in one process: each of its own would import torch or OpenCV.
COMMANDS = f"""
import sys
from fedretina.cli import main
for words in sys.argv[1:]:
    try:
        assert not main(words.split(), standalone_mode=False)
    except SystemExit as end:
        assert not end.code
    print({BETWEEN!r}, end="", flush=True)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the package with all that the page adds."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "custom", root / "custom")  # with its bytecode
    (root / "tests" / "data").mkdir(parents=True)
    for file, text in blocks(PAGE, "python"):
        assert not (root / file).exists(), file
        (root / file).write_text(text)
    return root


def printed(copy, *commands):
    """What each of some commands prints."""
    return in_subprocess("-c", COMMANDS, *commands, python_path=copy / "custom", cwd=copy).split(BETWEEN)[:-1]


@pytest.mark.slow
def test_the_reader_of_the_page_holds_what_is_demanded_and_imports(copy):
    test = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/data/test_clinic2030.py")
    assert "1 passed" in in_subprocess(*test, python_path=copy / "custom", cwd=copy)
    (copy / "set" / "pictures").mkdir(parents=True)
    rows = ["picture,grade,person"]
    for number in range(60):
        pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        cv2.imwrite(str(copy / "set" / "pictures" / f"p{number:02}.png"), pixels)
        rows.append(f"p{number:02},{number % 5},person{number // 2:02}")
    (copy / "set" / "grades.csv").write_text("\n".join(rows))
    imported, listed = printed(copy, "data import clinic2030 set --out site", "data import --list")
    assert imported == shown(0)
    assert "clinic2030: Clinic 2030" in listed


def shown(number):
    """What the page says that its commands print: the blocks without a language, the commands themselves among them."""
    return blocks(PAGE, "")[number][1]
