"""The documentation as a site: it builds, loads nothing from elsewhere, and says what the pages say."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from docs import site_hooks
from markdown_it import MarkdownIt

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


@pytest.mark.slow
def test_the_site_is_whole_and_loads_nothing_from_elsewhere(tmp_path):
    """A link or an anchor that leads nowhere stops the build. Lists, tables, blocks: MkDocs is stricter than a host."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files = (*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css"))
    loaded = {"".join(found) for file in files for found in LOADED.findall(file.read_text(encoding="utf-8"))}
    assert not {address for address in loaded if re.match(r"(https?:)?//", address)}
    assert len(loaded) >= 50  # or the pattern finds nothing
    differ = {}
    for page in site_hooks.pages():
        host = MarkdownIt("commonmark", {"html": True}).enable("table").render(site_hooks.words(page))
        built = place(tmp_path, page).read_text(encoding="utf-8").partition("md-typeset")[2].partition("</article>")[0]
        built = re.sub(r'<a class="headerlink".*?</a>|<aside\b.*', "", built, flags=re.DOTALL)
        on_host, on_site = Counter(MARKS.findall(host)), Counter(MARKS.findall(built))
        if on_host != on_site:
            differ[page] = {"host": dict(on_host - on_site), "site": dict(on_site - on_host)}
    assert not differ


def test_every_page_stands_in_the_navigation_once():
    def named(entry):
        if isinstance(entry, str):
            return [entry]
        return [page for each in (entry.values() if isinstance(entry, dict) else entry) for page in named(each)]

    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(named(settings["nav"])) == sorted(map(site_hooks.shown, site_hooks.pages()))
