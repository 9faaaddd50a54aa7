"""Pages in a real browser, from the disk, as people have them: what is cut, what axe finds, keys, paper."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

WIDTHS = (1200, 390)
PAPER = 703  # CSS pixels of an A4 page between margins of 12 mm
PATIENCE = 600_000  # milliseconds; by default a busy machine fails after 5 seconds
CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex='0']"
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
CUT = """
() => {
  const wide = document.documentElement.clientWidth, found = new Set(), labels = [];
  const seen = (one) => one.checkVisibility({visibilityProperty: true, opacityProperty: true});
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const owner = node.parentElement, chart = owner.closest("svg"), text = node.data.trim();
    if (!text || !seen(owner) || owner.closest("script, style, option")) continue;
    const bounds = [];
    let scrolls = false;
    for (let one = owner; one !== document.body; one = one.parentElement) {
      const over = getComputedStyle(one).overflowX;
      scrolls ||= /auto|scroll/.test(over);
      if (one === chart || (/hidden|clip/.test(over) && !scrolls)) bounds.push(one.getBoundingClientRect());
    }
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (box.width < 1 || box.right < 0) continue;  // beside the window: for readers of the screen alone
      const beyond = (one) => box.left < one.left - 1.5 || box.right > one.right + 1.5 || box.bottom > one.bottom + 3;
      const out = !scrolls && (box.left < -1 || box.right > wide + 1);
      if (out || bounds.some(beyond)) found.add("cut: " + text.slice(0, 60));
      if (chart) labels.push([chart, box, text]);
    }
  }
  labels.forEach(([chart, box, text], at) => labels.slice(at + 1).forEach(([other, beside, words]) => {
    const over = Math.min(box.right, beside.right) - Math.max(box.left, beside.left);
    const deep = Math.min(box.bottom, beside.bottom) - Math.max(box.top, beside.top);
    if (chart === other && over > 1 && deep > 3) found.add("over each other: " + text + " | " + words);
  }));
  for (const image of document.images) {
    if (seen(image) && image.src && !image.naturalWidth) found.add("not loaded: " + image.alt);
  }
  const beyond = document.documentElement.scrollWidth - wide;
  if (beyond > 0) found.add("wider than the window by " + beyond);
  return [...found];
}
"""
"""Text beyond its box, the window or its chart, labels over each other, pictures that are not there."""
FOCUS = (
    "() => { window.reached = new Set(); addEventListener('focusin', (event) => window.reached.add(event.target)); }"
)
UNREACHED = f"""
() => [...document.querySelectorAll({CONTROLS!r})]
  .filter((one) => one.checkVisibility() && one.offsetWidth && !one.disabled && one.tabIndex >= 0)
  .filter((one) => !window.reached.has(one))
  .map((one) => one.outerHTML.slice(0, 120))
"""


@contextmanager
def launched() -> Iterator[Any]:
    """A Chromium of the system without a window, with an empty profile of its own; skips where there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no chromium is installed: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install '.[dev]'")
    api.expect.set_options(timeout=PATIENCE)
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=list(QUIET))
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, page: Path | str, width: int = 1200, **context: Any) -> Iterator[Any]:
    """A page from the disk, or an address; at the end nothing may have gone wrong, and nobody else have been asked."""
    address = page if isinstance(page, str) else page.as_uri()
    home = "/".join(address.split("/")[:3]) + "/"
    faults: list[str] = []
    window = browser.new_context(viewport={"width": width, "height": 800}, accept_downloads=True, **context)
    window.set_default_timeout(PATIENCE)
    shown = window.new_page()
    shown.on("pageerror", lambda error: faults.append(str(error)))
    shown.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    shown.on(
        "request",
        lambda asked: faults.append(asked.url) if not asked.url.startswith((home, "data:", "blob:")) else None,
    )
    shown.goto(address)
    if shown.locator("#hold input").count():
        shown.locator("#hold input").check()  # a page of status loads itself anew each minute
    yield shown
    window.close()
    assert faults == []


def grave(page: Any) -> list[tuple[str, str]]:
    """What axe-core calls serious or critical: the rule, and the first element that breaks it."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-core: pip install '.[dev]'")
    found = axe.Axe().run(page, options={"preload": False}).response["violations"]
    return [(one["id"], one["nodes"][0]["html"][:200]) for one in found if one["impact"] in ("serious", "critical")]


def unreached(page: Any) -> list[str]:
    """Controls that can be seen and that the Tab key never comes to."""
    page.evaluate(FOCUS)
    page.evaluate("() => { document.activeElement.blur(); }")
    for _ in range(page.locator(CONTROLS).count() + 2):
        page.keyboard.press("Tab")
    return list(page.evaluate(UNREACHED))


def printed(page: Any, file: Path) -> tuple[int, list[str]]:
    """Pages that an A4 print has, and what its right edge cuts."""
    page.pdf(path=file, format="A4")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": PAPER, "height": 1000})
    cut = page.evaluate(CUT)
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", file.read_bytes())), cut
