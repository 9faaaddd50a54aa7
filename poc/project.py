"""The project file of the rehearsal: who takes part, and where the server listens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

NAME = "fedretina"
# FLARE's server listens on all addresses unless its own name is one of the loopback.
SERVER = "localhost"
ADMIN = "admin@consortium.example"


def project(sites: Sequence[str], port: int) -> dict[str, Any]:
    """Words of a FLARE project file: a server on the loopback, the sites, and one project admin.

    Args:
        sites: Names of the sites.
        port: The server's only port, for sites and admin.
    """
    server = {"name": SERVER, "type": "server", "org": "consortium", "fed_learn_port": port}
    clients = [{"name": site, "type": "client", "org": site.replace("-", "_")} for site in sites]
    admin = {"name": ADMIN, "type": "admin", "org": "consortium", "role": "project_admin"}
    builders = [
        {
            "path": "nvflare.lighter.impl.workspace.WorkspaceBuilder",
            "args": {"template_file": ["master_template.yml"]},
        },
        {"path": "nvflare.lighter.impl.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
        {"path": "nvflare.lighter.impl.cert.CertBuilder"},
        {"path": "nvflare.lighter.impl.signature.SignatureBuilder"},
    ]
    return {
        "api_version": 3,
        "name": NAME,
        "description": "fedretina's rehearsal on one machine",
        "participants": [server, *clients, admin],
        "builders": builders,
    }


def write_project(path: Path, sites: Sequence[str], port: int) -> None:
    """Write the project file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(project(sites, port), sort_keys=False), encoding="utf-8")
