"""What MkDocs builds the site of: the pages of the repository in their own places, and every file that they link to.

The site has the repository's layout, so each relative link of a page holds in both. A source file that a page links to
becomes a page with its lines coloured, a linked folder a page with the list of its files. `make site` builds it.
"""

from __future__ import annotations

import json
import posixpath
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files, InclusionLevel

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
STARTS = ("README.md", "CHANGELOG.md", "docs/**/*.md", "docs/**/*.ipynb")
COPIED = {".svg", ".png", ".gz", ".html"}
"""Endings of what is given as it is; any other linked file is shown as text."""
LOOKS = ("docs/site.css", "docs/site.js")
"""What the pages have beside the theme's own."""
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".service": "ini", ".cff": "yaml"}
FENCE = re.compile(r"^(```+)[^\n]*\n.*?^\1$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s#]+)([^)\s]*\))")
EMPTY_HEAD = re.compile(r"<thead>\s*<tr>\s*(?:<th[^>]*></th>\s*)+</tr>\s*</thead>\s*")


def _outside_fences(text: str, change: re.Pattern[str], to: object) -> str:
    """The text with a pattern replaced everywhere but in blocks of code."""
    parts, at = [], 0
    for fence in FENCE.finditer(text):
        parts += [change.sub(to, text[at : fence.start()]), fence[0]]  # type: ignore[arg-type]
        at = fence.end()
    return "".join([*parts, change.sub(to, text[at:])])  # type: ignore[arg-type]


def targets(page: str, text: str) -> list[str]:
    """The repository's files and folders that a page links to, by their paths from the root."""
    found = (link[2] for link in LINK.finditer(FENCE.sub("", text)))
    here = posixpath.dirname(page)
    return [posixpath.normpath(posixpath.join(here, link)) for link in found if not re.match(r"[a-z]+:", link)]


def notebook(text: str) -> str:
    """A notebook as a page: its words, its code, and what the code printed."""
    lines: list[str] = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines += [source, ""]
            continue
        lines += ["```python", source, "```", ""]
        for output in cell["outputs"]:
            lines += ["```text", "".join(output["text"]).rstrip(), "```", ""]
    return "\n".join(lines)


@cache
def words(page: str) -> str:
    """A page of the repository as Markdown, a notebook's too."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return notebook(text) if page.endswith(".ipynb") else text


def pages() -> list[str]:
    """The pages that are there, and those that they lead to."""
    found = sorted({path.relative_to(ROOT).as_posix() for start in STARTS for path in ROOT.glob(start)})
    for page in found:  # grows
        found += dict.fromkeys(
            each for each in targets(page, words(page)) if each.endswith((".md", ".ipynb")) and each not in found
        )
    return found


def shown(target: str) -> str:
    """The page of the site that shows a linked file or folder; the file itself where it is copied."""
    path = ROOT / target
    if path.is_dir():
        return f"{target}/index.md"
    if path.suffix == ".ipynb":
        return f"{target.removesuffix('.ipynb')}.md"
    return target if path.suffix in {".md", *COPIED} else f"{target}.md"


def _source(target: str) -> str:
    path = ROOT / target
    head = f"---\ntitle: {target}\nsearch: {{exclude: true}}\n---\n\n# {target}\n\n"
    if path.is_dir():
        names = (f"{each.name}/" if each.is_dir() else each.name for each in sorted(path.iterdir()))
        return head + "\n".join(f"* `{name}`" for name in names if not name.startswith(("__pycache__", ".")))
    text = path.read_text(encoding="utf-8")
    ticks = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{head}{ticks}{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n{ticks}\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs's files: the theme's own, the pages, and what they link to."""
    found = pages()
    linked = {target for page in found for target in targets(page, words(page))} - set(found)
    places = [File.generated(config, shown(page), content=words(page)) for page in found]
    for target in sorted(linked):
        if (ROOT / target).suffix in COPIED:
            places.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
        else:
            places.append(
                File.generated(config, shown(target), content=_source(target), inclusion=InclusionLevel.NOT_IN_NAV)
            )
    own = [File.generated(config, name, abs_src_path=str(ROOT / name)) for name in LOOKS]
    return Files([*(file for file in files if file.src_dir != config.docs_dir), *places, *own])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """What a repository host takes and MkDocs does not: links to sources, two quotes in a row, folded parts, titles."""
    here = posixpath.dirname(page.file.src_uri)

    def place(link: re.Match[str]) -> str:
        if re.match(r"[a-z]+:", link[2]):
            return link[0]
        target = posixpath.normpath(posixpath.join(here, link[2]))
        return f"{link[1]}{posixpath.relpath(shown(target), here or '.')}{link[3]}"

    markdown = _outside_fences(markdown, LINK, place)
    markdown = re.sub(r"^(>.*\n)\n(?=>)", r"\1\n<!-- -->\n\n", markdown, flags=re.MULTILINE)  # two quotes, not one
    markdown = markdown.replace("<details>", '<details markdown="1">')
    return re.sub(r"^```(\w+) file=(\S+)$", r'```\1 title="\2"', markdown, flags=re.MULTILINE)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Tables whose head is empty stand without it."""
    return EMPTY_HEAD.sub("", html)
