"""Jobs that would make an end look something up: in a file, at an address, in its environment, in FLARE's variables."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

ENVIRONMENT = "HOSPITAL_WORD"
"""A variable of the participants' environment that holds a planted word."""
PLANTED = {kind: f"planted-{kind}-7f3a91" for kind in ("file", "server", "address", "environment")}
FILTER = "fedretina.flare.whitelist_filter.WhitelistFilter"
Change = Callable[[Path], None]


def plant(path: Path, kind: str) -> Path:
    """A file that is JSON, and so HOCON and YAML too, with a planted word in it."""
    path.write_text(json.dumps({"word": PLANTED[kind], "words": [PLANTED[kind]]}))
    return path


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """A web server of the hospital's own network: its address, and what was asked of it."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"word": PLANTED["address"], "words": [PLANTED["address"]]}).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/inside.json", asked
        finally:
            server.shutdown()


def hocon(end: str, first: str, value: str) -> Change:
    """Put HOCON in the place of a configuration: a line before it, and a value for an argument of its own."""

    def change(job: Path) -> None:
        path = job / "app" / "config" / f"config_fed_{end}.json"
        words = json.loads(path.read_text())
        part = words["components" if end == "server" else "executors"][0]
        (part if end == "server" else part["executor"])["args"] = {"experiment_file": "VALUE"}
        text = json.dumps(words, indent=1).strip()[1:-1].replace('"VALUE"', value)
        path.with_suffix(".conf").write_text(f"{first}\n{text}\n")
        path.unlink()

    return change


def yaml_for_json(job: Path) -> None:
    """Put YAML that OmegaConf would fill in from the environment in the place of the sites' configuration."""
    path = job / "app" / "config" / "config_fed_client.json"
    words = json.loads(path.read_text())
    words["executors"][0]["executor"]["args"] = {"experiment_file": f"/loot/${{oc.env:{ENVIRONMENT}}}"}
    path.with_suffix(".yml").write_text(json.dumps(words))
    path.unlink()


def argument(value: str, end: str = "client") -> Change:
    """Give an executor or the server's run another experiment file, in plain JSON."""

    def change(job: Path) -> None:
        path = job / "app" / "config" / f"config_fed_{end}.json"
        words = json.loads(path.read_text())
        part = words["components" if end == "server" else "executors"][0]
        (part if end == "server" else part["executor"])["args"] = {"experiment_file": value}
        path.write_text(json.dumps(words))

    return change


def with_file(name: str, text: str = "{}") -> Change:
    """Put one more file into the job."""

    def change(job: Path) -> None:
        path = job / "app" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    return change


def claim_the_scope(job: Path) -> None:
    """Let a job's own result filter say that it is the site's."""
    path = job / "app" / "config" / "config_fed_client.json"
    words = json.loads(path.read_text())
    words["task_result_filters"][0]["filters"][0]["args"]["scope"] = True
    path.write_text(json.dumps(words))


def hostile_jobs(site_file: Path, server_file: Path, key: Path, address: str) -> dict[str, Change]:
    """Each hostile job by its name.

    Args:
        site_file: A file that sites can read.
        server_file: A file of the server's.
        key: A private key.
        address: An address inside.
    """

    def include(what: str, by: str = "file") -> str:
        return f'loot {{ include {by}("{what}") }}'

    joined, exact = '"/loot/"${loot.word}', '"x"${loot.words}'
    return {
        "include-told": hocon("client", include(str(site_file)), joined),
        "include-key": hocon("client", include(str(key)), exact),
        "include-address": hocon("client", include(address, "url"), joined),
        "environment": hocon("client", "", f'"/loot/"${{{ENVIRONMENT}}}'),
        "of-the-server": hocon("server", include(str(server_file)), exact),
        "yaml": yaml_for_json,
        "variables": argument(f"{{WORKSPACE}}/{{ROOT_URL}}/{{SITE_NAME}}/{{${ENVIRONMENT}}}"),
        "server-variables": argument(f"{{WORKSPACE}}/{{${ENVIRONMENT}}}", "server"),
        "nested": with_file("config/more/comm_config.json"),
        "beside-config": with_file("notes.txt"),
        "claims-scope": claim_the_scope,
    }
