"""Draw the pages that docs/ shows: `.venv/bin/python docs/draw_pages.py [FOLDER]`, a few minutes on two cores.

A run over two phantom hospitals, a work list of new phantoms of one of them, a data check with faults made on purpose,
and the status of a made-up consortium, each opened in the system's Chromium. No patient's image can be among them. In
FOLDER, by default one that is thrown away, everything stays that was made; what is there already is not made again.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from PIL import Image, PngImagePlugin

from fedretina.kit.end_status import EndStatus, Process, RunStatus
from fedretina.kit.findings import bad, good
from fedretina.report.render import write_page
from fedretina.report.status_page import status_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PICTURES = Path(__file__).parent / "pictures"
SITES = ("site-1", "site-3")


def fedretina(*words: Any) -> None:
    """Run a command; a data check that finds faults ends with 2, as it should.

    Raises:
        RuntimeError: It ended with another code.
    """
    done = subprocess.run(
        [sys.executable, "-m", "fedretina", *map(str, words)], check=False, capture_output=True, text=True
    )
    if done.returncode not in ((0, 1, 2) if words[:2] == ("data", "check") else (0,)):
        raise RuntimeError(done.stderr)


def make(folder: Path) -> None:
    """Everything that is shown, by the commands that people use."""
    for site in SITES:
        if not (folder / site).exists():
            fedretina("data", "phantom", "--site", site, "--out", folder / site, "--images", 160, "--size", 384)
    if not (folder / "runs").exists():
        sites = [word for site in SITES for word in ("--site", f"{site}={folder / site / 'site.yaml'}")]
        fedretina("loop", "feduaa", *sites, "--rounds", 6, "--root", folder / "runs", "--run", "spring",
                  "--set", "images.image_size=128")  # fmt: skip
    if not (folder / "list").exists():
        new = folder / "new"
        fedretina("data", "phantom", "--site", "site-1", "--out", new, "--images", 40, "--size", 384, "--seed", 2)
        fedretina("predict", new / "images", "--model", folder / "runs/spring/site-1/final", "--out", folder / "list",
                  "--patients", new / "manifest.csv")  # fmt: skip
    if not (folder / "check").exists():
        spoil(folder / "new", folder / "north")
        fedretina("data", "check", folder / "north", "--out", folder / "check", "--image-size", 128)
    for name, status in (("site", example()), ("server", example(server=True))):
        write_page(folder / f"status_{name}.html", status_page(status))


def spoil(whole: Path, spoiled: Path) -> None:
    """A copy of a phantom hospital with three faults: a file cut off, a copy with another grade, a missing file."""
    shutil.copytree(whole, spoiled)
    with open(spoiled / "manifest.csv", newline="", encoding="utf-8") as handle:
        header, *rows = list(csv.reader(handle))
    label, split = header.index("label"), header.index("split")
    cut = spoiled / "images" / rows[5][0]
    cut.write_bytes(cut.read_bytes()[:5000])
    (spoiled / "images" / rows[9][0]).unlink()
    copied = next(row for row in rows if row[split] == "test" and row[label] != rows[0][label])
    shutil.copy(spoiled / "images" / rows[0][0], spoiled / "images" / copied[0])
    with open(spoiled / "manifest.csv", "w", newline="", encoding="utf-8") as handle:
        csv.writer(handle).writerows([header, *rows])


def example(server: bool = False) -> EndStatus:
    """The status of a made-up consortium of five hospitals, of which one is away."""
    now = time.time()
    report = {
        **{"run": "spring", "done": 3, "steps": 12, "task": "train", "phase": "train", "round": 4, "rounds": 10},
        **{"attempt": 1, "answered": ["site-1", "site-2"], "waiting": ["site-3", "site-4", "site-5"], "refused": {}},
        **{"seconds": 910.0, "seconds_left": 8200.0},
    }
    at_server = {"state": "running", "report": report, "patients": 1410, "patients_of": 4, "trained": 5, "faults": []}
    at_site = {"task": "train", "phase": "train", "round": 3, "rounds": 10, "attempt": 1, "state": "answered",
               "answered": now - 240, "seconds": 512.0, "faults": []}  # fmt: skip
    connected = {f"site-{at}": now - 3600 * at for at in (1, 2, 3, 4)} if server else {}
    runs = [RunStatus("spring", at_server if server else at_site, 5, 28_000_000, 70_000_000, 0, now)]
    winter = {"state": "completed"} | ({"report": {**report, "done": 12, "task": None}} if server else {})
    runs.append(RunStatus("winter", winter, 12, 0, 168_000_000, 0, now - 5e6))
    return EndStatus(
        role="server" if server else "site",
        name="server.consortium.example" if server else "site-1",
        organisation="Example Consortium" if server else "Example Eye Hospital",
        written=now,
        kept_fresh=True,
        process=Process(now, now - 8e5, False, True, now - 2e5, connected, []),
        runs=runs,
        more_runs=0,
        findings=[
            good("disk", "812 GB of 1000 GB free"),
            bad("certificate", "ends in 12 days", "ask the consortium's engineer for a new startup kit."),
        ],
        faults=[],
        approvals=None if server else ["spring: approved by A. Meyer until 2027-01-31"],
        bytes_today=28_000_000,
        bytes_all=238_000_000,
        messages=17,
        refused_jobs=0,
        versions="fedretina, example",
    )


def shoot(
    browser: Browser, page: Path, name: str, width: int, height: int, *, at: str = "", keys: Sequence[str] = ()
) -> None:
    """Write a picture of a page, of few colours and marked as synthetic.

    Args:
        browser: Opens it.
        page: The file.
        name: Of the picture.
        width: Of the window, in pixels.
        height: Of the picture.
        at: Text of the heading with which the picture begins; the top where it is empty.
        keys: Pressed on the first photograph of a work list, or once more before the picture.
    """
    shown = browser.new_page(viewport={"width": width, "height": height})
    shown.goto(page.as_uri())
    if at:
        shown.locator("h2, h3", has_text=at).first.evaluate(
            "one => scrollTo(0, scrollY + one.getBoundingClientRect().top - 12)"
        )
    if keys:
        shown.locator("figure.photo").first.focus()
        for key in keys:
            shown.keyboard.press(key)
            shown.wait_for_timeout(500)  # a picture is loaded
    file = PICTURES / f"{name}.png"
    shown.screenshot(path=file)
    shown.close()
    text = PngImagePlugin.PngInfo()
    text.add_text("Synthetic", "fedretina phantom, not a patient")
    with Image.open(file) as taken:
        small = (
            taken.convert("RGB").resize((taken.width * 5 // 6, taken.height * 5 // 6))
            if width > 800
            else taken.convert("RGB")
        )
    small.quantize(96).save(file, optimize=True, pnginfo=text)


def main() -> None:
    """Make the pages and write their pictures."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    with TemporaryDirectory() as thrown, sync_playwright() as play:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else thrown).resolve()
        make(folder)
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        site, server = folder / "runs/spring/site-1/final/report.html", folder / "runs/spring/server/report.html"
        shoot(browser, site, "report_site", 1200, 830)
        shoot(browser, site, "report_sureness", 1200, 560, at="How sure it is")
        shoot(browser, server, "report_server", 1200, 900, at="Every site by itself")
        listed = folder / "list/worklist.html"
        shoot(browser, listed, "worklist_list", 1200, 900, keys=["a", "j", "j"])
        shoot(browser, listed, "worklist_map", 1200, 900, keys=["j", "j", "e", "m"])
        shoot(browser, listed, "worklist_telephone", 390, 844, keys=["j"])
        shoot(browser, folder / "check/check.html", "data_check", 1200, 900)
        shoot(browser, folder / "status_site.html", "status_site", 1200, 700)
        shoot(browser, folder / "status_server.html", "status_server", 1200, 700)
        browser.close()


if __name__ == "__main__":
    main()
