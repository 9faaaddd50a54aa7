"""The project file of the rehearsal: project.yml beside this file, with other sites and another port."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

PROJECT_FILE = Path(__file__).with_name("project.yml")
NAME = "fedretina"
SERVER = "localhost"
ADMIN = "admin@consortium.example"


def project(sites: Sequence[str], port: int) -> dict[str, Any]:
    """Words of a FLARE project file: a server on the loopback, the sites, and one project admin.

    Args:
        sites: Names of the sites.
        port: The server's only port, for sites and admin.
    """
    words: dict[str, Any] = yaml.safe_load(PROJECT_FILE.read_text(encoding="utf-8"))
    by_type = {entry["type"]: entry for entry in words["participants"]}
    clients = [{"name": site, "type": "client", "org": site.replace("-", "_")} for site in sites]
    return {
        **words,
        "participants": [{**by_type["server"], "fed_learn_port": port}, *clients, by_type["admin"]],
    }


def write_project(path: Path, sites: Sequence[str], port: int) -> None:
    """Write the project file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(project(sites, port), sort_keys=False), encoding="utf-8")
