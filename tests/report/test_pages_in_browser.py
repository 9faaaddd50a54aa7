"""The pages of reports, data check and status in a real browser: two widths, paper, keyboard, axe."""

from __future__ import annotations

import time

import cv2
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from site_inputs import DEGENERATE, ROUNDS, site_inputs, stored_results
from test_status_page import REPORT, SERVER, SITE, TOLD

from browser import CUT, WIDTHS, grave, launched, opened, printed, unreached
from fedretina.cli import main
from fedretina.kit.end_status import RunStatus
from fedretina.kit.findings import note
from fedretina.report.render import render_server, render_site
from fedretina.report.server_report import server_report
from fedretina.report.site_report import site_report
from fedretina.report.status_page import status_page
from fedretina.settings.scheme import preset
from little_eyes import eye, save, write_rows, write_site

pytestmark = pytest.mark.slow  # `make everyday` looks at what stands in pages, not at how a browser draws it
LONG = "university-eye-hospital-of-the-northern-region"
PAGES = {"site": 11, "least": 6, "server": 13, "check": 7, "status": 2, "consortium": 3, "old": 2}
"""The pages, and how many sheets of paper each may take."""


def site():
    """Every part of a hospital's page: subgroups, eyes, a temperature, thirty rounds, 200 photographs."""
    of = {
        "camera": ("Topcon NW400", "Kowa nonmyd 7", "Zeiss Visucam 500 of the second outpatient clinic", ""),
        "sex": ("female", "male"),
        "age_band": ("under_40", "from_50", "from_60", "from_70"),
        "macular_oedema": ("no", "yes", ""),
    }
    rounds = [{**ROUNDS[0], "step": f"train-{at:04}", "val_auc": 0.6 + at / 100} for at in range(30)]
    inputs = site_inputs(
        200, preset("icdr5_ungradable"), site=LONG, history=rounds, chosen="train-0021", synthetic=True
    )
    columns = {name: [values[at % len(values)] for at in range(200)] for name, values in of.items()}
    small = torch.from_numpy(np.stack([cv2.resize(eye(at % 8), (64, 64)).transpose(2, 0, 1) for at in range(200)]))
    return render_site(site_report(inputs._replace(test=inputs.test._replace(columns=columns, images=small))))


def server():
    """Twelve hospitals with three schemes, some with long names."""
    names = [*(f"site-{at}" for at in range(1, 10)), LONG, "st-elisabeth", LONG.replace("northern", "southern")]
    schemes = [preset(name) for name in ("icdr5", "normal_3stages", "icdr5_ungradable")]
    some = [site_inputs(60 + 10 * at, scheme, synthetic=True) for at, scheme in enumerate(schemes)]
    return render_server(server_report(stored_results({name: some[at % 3] for at, name in enumerate(names)})))


def consortium():
    """The server's status: twenty sites connected, three not, one of the answers refused."""
    now = time.time()
    names = [*(f"site-{at}" for at in range(1, 23)), LONG]
    refused = {LONG: "the loss became infinite: lower the learning rate."}
    report = {**REPORT, "answered": names[:9], "waiting": names[9:22], "refused": refused}
    older = [RunStatus(f"run-{at}-of-the-winter-campaign", {"state": "completed"}, 0, 0, 0, 0, now) for at in range(7)]
    return status_page(
        SERVER._replace(
            name="server.consortium.example",
            written=now,
            process=SERVER.process._replace(written=now, sites=dict.fromkeys(names[:20], now - 60)),
            runs=[RunStatus("spring", {**TOLD, "report": report}, 0, 0, 0, 0, now), *older],
            more_runs=4,
        )
    )


def checked(folder):
    """The page of a data check that finds faults of every severity."""
    rows = write_site(folder)
    save(folder / "images" / "copy.png", eye(0))
    (folder / "images" / "empty.png").write_bytes(b"")
    save(folder / "images" / "wide.png", eye(42, 160, 420))
    missing = [f"{at}-with-a-long-name-as-cameras-give-them-20260101120000.png" for at in range(9)]
    more = [("copy.png", "3", "test"), ("empty.png", "1", "train"), ("wide.png", "2", "val")]
    rows += [
        [file, label, f"p-{file}", split] for file, label, split in [*more, *((one, "1", "train") for one in missing)]
    ]
    write_rows(folder, rows)
    assert CliRunner().invoke(main, ["data", "check", str(folder), "--out", str(folder / "out")]).exit_code == 2
    return (folder / "out" / "check.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser():
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def folder(browser, tmp_path_factory):
    """Every page, made once; not at all where there is no browser."""
    root = tmp_path_factory.mktemp("pages")
    now = time.time()
    made = {
        "site": site(),
        "least": render_site(site_report(DEGENERATE["one image"]())),
        "server": server(),
        "check": checked(root / "north"),
        "status": status_page(SITE._replace(written=now, approvals=["spring: waits for a decision since yesterday"])),
        "consortium": consortium(),
        "old": status_page(
            SITE._replace(process=None, runs=[], faults=[], findings=[note("disk", "?")], written=now - 9e4)
        ),
    }
    assert made.keys() == PAGES.keys()
    for name, page in made.items():
        (root / f"{name}.html").write_text(page, encoding="utf-8")
    return root


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_in_two_windows_and_on_paper_for_the_keyboard_and_for_axe(browser, folder, name, tmp_path):
    with opened(browser, folder / f"{name}.html") as page:
        assert unreached(page) == []
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate(CUT) == []
            page.evaluate("() => { window.folded = [...document.querySelectorAll('details:not([open])')]; }")
            page.evaluate("() => { window.folded.forEach((one) => { one.open = true; }); }")
            assert page.evaluate(CUT) == []
            if width == min(WIDTHS):  # which has all that the wide one has, and what scrolls in its box besides
                assert grave(page) == []
            page.evaluate("() => { window.folded.forEach((one) => { one.open = false; }); }")
        sheets, cut = printed(page, tmp_path / "page.pdf")
        assert cut == []
        assert 0 < sheets <= PAGES[name]


def test_a_page_says_on_top_who_must_be_called_and_who_was_missed(browser, folder):
    with opened(browser, folder / "consortium.html") as page:
        sites = page.locator("ul.named .mark").all_inner_texts()
        assert sites[:4] == ["site-21", "site-22", LONG, "site-1"]
        assert sites[4] == "site-2"
        assert "3 asked by the running step are not" in page.locator(".tiles").inner_text()
    with opened(browser, folder / "site.html") as page:
        first = page.locator(".tile.first").bounding_box()
        assert first["y"] + first["height"] < page.locator(".summary").bounding_box()["y"]
    with opened(browser, folder / "old.html") as page:
        assert page.locator("#old").inner_text().startswith("This page is old: it was written 25 hours ago")
    with opened(browser, folder / "server.html") as page:
        rows = page.locator("th.site[scope=row]").all_inner_texts()
        assert rows[:3] == ["site-1", "site-2", "site-3"]
        labels = " ".join(page.locator("figure svg").first.locator("text").all_text_contents())
        assert "of-the-northern-region" in labels
        assert "of-the-southern-region" in labels


def test_a_page_of_status_loads_itself_anew_unless_its_reader_holds_it(browser, folder):
    with browser.new_context() as window:
        page = window.new_page()
        page.clock.install()
        page.goto((folder / "status.html").as_uri())
        page.evaluate("() => { window.mark = true; }")
        page.locator("#hold input").check()
        page.clock.fast_forward(61_000)
        assert page.evaluate("() => window.mark")
        page.locator("#hold input").uncheck()
        with page.expect_event("load"):
            page.clock.fast_forward(61_000)
        assert page.evaluate("() => window.mark") is None
