"""A study's results in one file: a line for each JSON file of its folder, gzipped, the same bytes each time."""

from __future__ import annotations

import gzip
import json
from collections.abc import Container
from pathlib import Path
from typing import Any

from fedretina.errors import StateError
from fedretina.storage import read_json, write_bytes, write_json

SUFFIX = ".jsonl.gz"


def pack(folder: Path, file: Path, leave: Container[str] = ()) -> int:
    """Write the JSON files of a study's folder into one file; return how many.

    Answers to single images and models are no JSON and stay where they are.

    Args:
        folder: The study's folder.
        file: What is written; its folder is made when missing.
        leave: Names of folders that hold no results.

    Raises:
        StateError: A file of the folder is damaged, or the packed file cannot be written.
    """
    found = [path.relative_to(folder) for path in sorted(folder.rglob("*.json"))]
    parts = {path.as_posix(): read_json(folder / path) for path in found if not any(one in leave for one in path.parts)}
    lines = [json.dumps({"file": name, "holds": held}, sort_keys=True) + "\n" for name, held in parts.items()]
    write_bytes(file, gzip.compress("".join(lines).encode(), mtime=0))
    return len(parts)


def read_packed(file: Path) -> dict[str, Any]:
    """What each file of a packed study holds, by its place in the study's folder.

    Raises:
        StateError: The file is missing or damaged.
    """
    try:
        lines = gzip.decompress(file.read_bytes()).decode().splitlines()
        return {one["file"]: one["holds"] for one in map(json.loads, lines)}
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{file} holds no packed results: bring the file anew.") from error


def unpack(file: Path, folder: Path) -> None:
    """Write a packed study's files into a folder that holds no study yet.

    Raises:
        StateError: The file is missing or damaged, the folder holds results, or a name in the file leads out of it.
    """
    parts = read_packed(file)
    if (folder / "plan.json").exists():
        raise StateError(f"{folder} holds results already: name an empty folder.")
    for name, held in parts.items():
        place = folder / name
        if not place.resolve().is_relative_to(folder.resolve()):
            raise StateError(f"{file} names a place outside its folder: bring the file anew.")
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(place, held)
