"""The documentation as a site: it builds, loads nothing from elsewhere, and says what the pages say."""

import os
import re
import subprocess
import sys
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path
from threading import Thread

import pytest
import yaml
from docs import site_hooks
from markdown_it import MarkdownIt

from browser import CUT, grave, launched, opened, unreached

ROOT = Path(__file__).resolve().parents[1]
LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed|input)\b[^>]*?\bsrc(?:set)?=[\"']?([^\"'\s>]+)"
    r"|<link\b[^>]*?\bhref=[\"']?([^\"'\s>]+)|url\([\"']?((?:https?:)?//[^\"')]+)|@import\s+[\"']([^\"']+)"
)
MARKS = re.compile(r"<(h[1-6]|li|ol|ul|table|pre|img|details|em|strong|blockquote|a|t[hd](?=[^>]*>[^<\s]))\b")
"""What a reader sees of a page's Markdown: cells count where they hold something."""


def place(site, page):
    shown = Path(site_hooks.shown(page))
    return site / (shown.with_name("index.html") if shown.name == "README.md" else shown.with_suffix(".html"))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site; a link or an anchor that leads nowhere stops its build."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_site_is_whole_and_loads_nothing_from_elsewhere(built):
    """Lists, tables, blocks: MkDocs is stricter than a host."""
    files = (*built.rglob("*.html"), *built.rglob("*.css"))
    loaded = {"".join(found) for file in files for found in LOADED.findall(file.read_text(encoding="utf-8"))}
    assert not {address for address in loaded if re.match(r"(https?:)?//", address)}
    assert len(loaded) >= 50  # or the pattern finds nothing
    differ = {}
    for page in site_hooks.pages():
        host = MarkdownIt("commonmark", {"html": True}).enable("table").render(site_hooks.words(page))
        words = place(built, page).read_text(encoding="utf-8").partition("md-typeset")[2].partition("</article>")[0]
        words = re.sub(r'<a class="headerlink".*?</a>|<aside\b.*', "", words, flags=re.DOTALL)
        on_host, on_site = Counter(MARKS.findall(host)), Counter(MARKS.findall(words))
        if on_host != on_site:
            differ[page] = {"host": dict(on_host - on_site), "site": dict(on_site - on_host)}
    assert not differ


@pytest.fixture(scope="module")
def served(built):
    """The site on loopback, as `python -m http.server` gives it to a reader."""

    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, *words):
            pass

    handler = partial(Silent, directory=built)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_pages_of_the_site_are_whole_by_day_and_by_night_and_axe_finds_nothing_serious(served):
    """A page of each kind: the start, tables wider than a telephone, pictures, code."""
    pages = ("index.html", "docs/settings.html", "docs/reading_the_report.html", "docs/watching.html")
    with launched() as browser:
        for page, (width, scheme) in zip(pages, cycle([(390, "light"), (1200, "dark"), (390, "dark")])):
            with opened(browser, f"{served}/{page}", width, color_scheme=scheme) as shown:
                shown.wait_for_load_state("networkidle")
                assert shown.evaluate(CUT) == [], (page, width, scheme)
                assert grave(shown) == [], (page, width, scheme)
        with opened(browser, f"{served}/docs/watching.html") as shown:
            assert unreached(shown) == []


def test_every_page_stands_in_the_navigation_once():
    def named(entry):
        if isinstance(entry, str):
            return [entry]
        return [page for each in (entry.values() if isinstance(entry, dict) else entry) for page in named(each)]

    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(named(settings["nav"])) == sorted(map(site_hooks.shown, site_hooks.pages()))
