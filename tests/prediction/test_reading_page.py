"""The work list in a real browser, from the disk, as a doctor has it: keys, decisions, pixels, map, print, axe."""

from __future__ import annotations

import csv
import re
from contextlib import ExitStack

import cv2
import numpy as np
import pytest

from browser import CUT, WIDTHS, grave, launched, printed, unreached
from browser import opened as browser_page
from fedretina.data.phantoms.canvas import Canvas
from fedretina.data.phantoms.fundus import FundusStyle, draw_fundus
from fedretina.prediction.decisions import (
    LIST_FILE,
    Decision,
    joined,
    list_record,
    read_list,
    reading,
    reading_record,
)
from fedretina.prediction.drift import drift
from fedretina.prediction.evidence import EvidenceMap
from fedretina.prediction.eyes import Owner
from fedretina.prediction.photographs import FULL_FOLDER, full_copy, seen_copy, thumbnail
from fedretina.prediction.phrases import LANGUAGES, Phrases
from fedretina.prediction.predictor import ImageRow
from fedretina.prediction.worklist import work_list, write_images
from fedretina.prediction.worklist_page import Pictures, worklist_page
from fedretina.report.render import render_reading
from fedretina.settings.scheme import preset
from fedretina.storage import read_json, write_json
from fedretina.uncertainty.referral import UNREADABLE, refer

pytestmark = pytest.mark.slow  # as tests/report/test_pages_in_browser.py
SCHEME = preset("icdr5_ungradable")
PROMISE = {
    "missed": 0.05,
    "sure": 0.9,
    "patients": 45,
    "needed": 45,
    "passed": 1,
    "allowed": 2,
    "reason": "kept",
    "threshold": 0.2,
}
AUCS = {"federated": {"auc": 0.92}, "own": {"auc": 0.9}}
VERDICT = {
    **{"rival": "own", "start": "none", "measure": "auc", "shared": True, "outcome": "none", "kept": "own"},
    "test": {
        "models": AUCS,
        "differences": {"own": {"auc": {"low": -0.01, "high": 0.05}}},
        "images": 60,
        "patients": 37,
    },
    **{"reason": "better", "validation": {"values": {"federated": 0.92, "own": 0.93}, "patients": 30}},
}
GRADES = [
    ("1-left.png", "1", 4, 0.4),
    ("1-right.png", "1", 0, 0.3),
    ("2-left.png", "2", 0, 0.9),
    ("3.png", "3", None, None),
]


@pytest.fixture(scope="module")
def browser():
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def folder(browser, hospital, tmp_path_factory):
    """Two patients with photographs, one without an answer, in every language."""
    root = tmp_path_factory.mktemp("reading")
    (root / FULL_FOLDER).mkdir()
    style = FundusStyle(retina=(200, 105, 60))
    rows, small, full, seen, maps = [], {}, {}, {}, {}
    for at, (file, _, grade, u) in enumerate(GRADES):
        if grade is None:
            rows.append(
                ImageRow(file, None, None, None, UNREADABLE, "the file is empty: copy it again from its source.")
            )
            continue
        chances = np.full(6, 0.1)
        chances[grade] = 0.5
        rows.append(ImageRow(file, grade, chances, u, refer(grade, u, 0.5, SCHEME), ""))
        person, picture = (np.random.default_rng([7, part]) for part in (at // 2, at + 9))
        pixels = draw_fundus(Canvas(480), style, person, at % 2 == 0, float(grade), False, picture)
        cv2.imwrite(str(root / file), pixels[..., ::-1])
        small[file] = thumbnail(root / file)
        full[file] = f"{FULL_FOLDER}/{full_copy(root / file, root / FULL_FOLDER, at + 1)}"
        shown = cv2.resize(pixels, (96, 96)).transpose(2, 0, 1)
        seen[file] = f"{FULL_FOLDER}/{seen_copy(shown, root / FULL_FOLDER, at + 1)}"
        maps[file] = EvidenceMap(np.arange(9.0).reshape(3, 3) - 3, 0.5)
    card = read_json(hospital.final / "card.json") | {"synthetic": True, "scheme": SCHEME.model_dump(mode="json")}
    card["referral"] |= {"threshold": card["referral"]["curve"]["at"][3], "reason": "measured"}
    card |= {"promise": PROMISE, "verdict": VERDICT, "model": "federated"}
    eyes = ("left", "right", "left", "")
    owners = [Owner(patient, eye) for (_, patient, _, _), eye in zip(GRADES, eyes, strict=True)]
    patients = work_list(rows, owners, SCHEME)
    write_images(root / "images.csv", patients, SCHEME)
    write_json(root / LIST_FILE, list_record(root / "images.csv", card))
    pictures = Pictures(small, full, FULL_FOLDER, seen, maps)
    for language in LANGUAGES:
        listed = (
            card,
            SCHEME,
            patients,
            pictures,
            ["No two photographs are named as the two eyes of a patient."],
            drift(card, patients),
        )
        page = worklist_page(*listed, read_list(root).record["list"], language)
        (root / f"{language}.html").write_text(page, encoding="utf-8")
    return root


@pytest.fixture
def opened(browser, folder):
    """Opens a page of a language; what went wrong in any is told at the end."""
    with ExitStack() as held:
        yield lambda language="en", width=1200: held.enter_context(
            browser_page(browser, folder / f"{language}.html", width)
        )


def test_the_keyboard_alone_is_enough_and_what_is_saved_is_read_back(opened, folder, tmp_path):
    from playwright.sync_api import expect

    page = opened()
    page.locator("#reader").fill("Dr. Ü")
    page.locator("figure.photo").first.focus()
    page.keyboard.press("a")  # 1-left
    page.keyboard.press("j")
    page.keyboard.press("2")  # 1-right
    page.keyboard.press("n")
    page.keyboard.type('=soft "spots", here')
    page.keyboard.press("Enter")
    page.keyboard.press("j")
    page.keyboard.press("a")  # 3 has no answer to agree with
    page.keyboard.press("u")
    page.keyboard.press("j")
    page.keyboard.press("a")
    page.keyboard.press("x")  # taken back
    assert page.locator("#decided").inner_text() == "3 of 4 photographs decided, not yet saved to a file"
    page.reload()
    assert page.locator("figure.decided").count() == 3  # kept in the browser
    page.locator("figure.photo").first.focus()
    with page.expect_download() as download:
        page.keyboard.press("s")
    saved = tmp_path / "d.csv"
    download.value.save_as(saved)
    of = read_list(folder)
    decisions = joined([saved], of)
    assert {one.file: (one.verdict, one.grade, one.note) for one in decisions["Dr. Ü"]} == {
        "1-left.png": ("agree", "proliferative", ""),
        "1-right.png": ("other", "moderate", '=soft "spots", here'),
        "3.png": ("ungradable", "ungradable", ""),
    }
    assert reading("Dr. Ü", decisions["Dr. Ü"], of).agreed == (1, 2)
    other = opened()  # another browser, where nothing is kept
    assert other.locator("figure.decided").count() == 0
    other.locator("#load-file").set_input_files(saved)
    expect(other.locator("figure.decided")).to_have_count(3)
    with other.expect_download() as download:
        other.locator("#save").click()
    download.value.save_as(tmp_path / "e.csv")
    assert saved.read_bytes() == (tmp_path / "e.csv").read_bytes()
    other.locator("#load-file").set_input_files(folder / "images.csv")
    expect(other.locator("#told")).to_contain_text("no decisions on this list")
    assert other.locator("figure.decided").count() == 3


def test_a_photograph_is_enlarged_to_its_own_pixels_and_the_map_lies_over_what_the_model_saw(opened):
    from playwright.sync_api import expect

    page = opened()
    first = page.locator("figure.photo").first
    first.focus()
    page.keyboard.press("e")
    expect(page.locator("#view-picture")).to_have_js_property("naturalWidth", 480)
    page.keyboard.press("o")
    assert page.locator("#view-picture").bounding_box()["width"] == 480
    page.keyboard.press("+")
    assert page.locator("#view-picture").bounding_box()["width"] == 720
    page.keyboard.press("f")
    box, stage = (page.locator(one).bounding_box() for one in ("#view-picture", ".stage"))
    assert box["y"] >= stage["y"] - 1
    assert box["y"] + box["height"] <= stage["y"] + stage["height"] + 1
    page.keyboard.press("m")
    expect(page.locator("#view-picture")).to_have_js_property("naturalWidth", 96)
    assert page.locator("#view-map").bounding_box() == page.locator("#view-picture").bounding_box()
    assert "row 3, column 3 of 3 x 3" in page.locator("#view-map-words").inner_text()
    assert page.locator("#view-picture").evaluate("one => getComputedStyle(one).filter") == "grayscale(1)"
    paint = "at => Array.from(document.getElementById('view-map').getContext('2d').getImageData(at, at, 1, 1).data)"
    assert page.evaluate(paint, 0)[2] > page.evaluate(paint, 0)[0]  # blue: against disease
    assert page.evaluate(paint, 2)[0] > page.evaluate(paint, 2)[2]  # orange: for it
    page.keyboard.press("u")
    page.keyboard.press("Escape")
    assert not page.locator("#view").is_visible()
    assert page.evaluate("document.activeElement.dataset.file") == "1-left.png"
    assert "decided" in first.get_attribute("class")


def test_the_slider_asks_and_changes_nothing(opened, folder, hospital):
    page = opened()
    curve = read_json(hospital.final / "card.json")["referral"]["curve"]
    page.locator("#slider summary").click()
    assert "site's threshold" in page.locator("#at").inner_text()
    before = page.locator("li.patient .badge").all_inner_texts()
    page.locator("#threshold").focus()
    page.keyboard.press("Home")
    assert page.locator("#here").inner_text() == "3 of 3 (100 %)"
    assert page.locator("#missed").inner_text() == f"0 of {curve['ill']} (0 %)"
    page.keyboard.press("End")
    assert page.locator("#here").inner_text() == "2 of 3 (67 %)"  # one is referred for doubt alone
    assert page.locator("#load").inner_text().startswith(f"{curve['referred'][-1]} of {curve['patients']} ")
    assert page.locator("#missed").inner_text().startswith(f"{curve['missed'][-1]} of {curve['ill']} ")
    assert page.locator("li.patient .badge").all_inner_texts() == before


def test_hidden_answers_show_once_decided_and_the_file_says_so(opened, tmp_path):
    page = opened()
    page.locator("#blind").check()
    answer = page.locator("figure.photo").first.locator(".answer")
    assert not answer.is_visible()
    page.locator("figure.photo").first.focus()
    page.keyboard.press("e")
    assert page.locator("#view-answer").inner_text() == ""
    page.keyboard.press("m")
    assert page.locator("#view-map").is_hidden()
    page.keyboard.press("m")
    page.keyboard.press("3")
    page.keyboard.press("Escape")
    assert answer.is_visible()
    with page.expect_download() as download:
        page.keyboard.press("s")
    download.value.save_as(tmp_path / "d.csv")
    lines = csv.DictReader((tmp_path / "d.csv").read_text(encoding="utf-8-sig").splitlines())
    assert [line["hidden"] for line in lines] == ["yes"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_fits_a_screen_a_telephone_and_paper(opened, language, tmp_path):
    for width in WIDTHS:
        page = opened(language, width)
        page.locator("#worth summary").click()
        assert page.evaluate(CUT) == []
        assert page.evaluate("document.documentElement.lang") == language
        text = page.locator("body").inner_text()
        assert Phrases(language).phrase("said.notice") in text
        assert re.search(r"\{\w+\}", text) is None
        assert page.locator(f"main [lang]:not([lang={language}])").all_inner_texts() == []  # nothing stays English
    page = opened(language)
    page.locator("figure.photo").first.focus()
    page.keyboard.press("a")
    sheets, cut = printed(page, tmp_path / "list.pdf")
    assert cut == []
    assert 0 < sheets <= 3
    assert not page.locator("#controls").is_visible()
    assert Phrases(language).phrase("decide.agree") in page.locator(".paper").first.inner_text()


@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_serious_and_the_tab_key_comes_everywhere(opened, width):
    page = opened("en", width)
    for panel in page.locator("details summary").all():
        panel.click()
    page.locator("figure.photo").first.focus()
    page.keyboard.press("1")
    assert grave(page) == []
    assert unreached(page) == []
    page.locator("figure.photo").first.focus()
    page.keyboard.press("e")
    assert grave(page) == []


def test_the_page_of_a_reading_is_whole(browser, folder, tmp_path):
    """Two readers: one is of one mind with the model, the other never, and writes long notes."""
    of = read_list(folder)
    answers = [one for one in of.answers.values() if one.grade]
    note = "cotton wool spots above the disc; to be seen within the month"
    decided = {
        "Dr. A. Müller-Lüdenscheidt": [Decision(one.file, "other", "severe", note, True) for one in answers],
        "": [Decision(one.file, "agree", one.grade, "", False) for one in answers],
    }
    file = tmp_path / "reading.html"
    file.write_text(render_reading(reading_record(decided, of)), encoding="utf-8")
    for width in WIDTHS:
        with browser_page(browser, file, width) as page:
            assert page.evaluate(CUT) == []
            assert grave(page) == []
            assert page.locator(".tile").first.inner_text().startswith("missed by the list")
    with browser_page(browser, file) as page:
        assert unreached(page) == []
        assert printed(page, tmp_path / "reading.pdf") in [(1, []), (2, [])]
