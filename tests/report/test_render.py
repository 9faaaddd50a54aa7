"""The pages: nothing to load, nothing unescaped, the same bytes from memory and from disk, whatever the record."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from site_inputs import CARD, DEGENERATE, UNKNOWN, site_inputs, stored_results

from fedretina.errors import StateError
from fedretina.report.render import render_server, render_site
from fedretina.report.server_report import server_report
from fedretina.report.site_report import site_report
from fedretina.report.text import CHARTS, NOTICE, STAYS, SYNTHETIC
from fedretina.settings.scheme import GradingScheme, preset

VOID = {"meta", "img", "br", "line", "link", "input", "hr"}
HOSTILE = '<script>alert(1)</script>"$\\frac{x}$'


class Page(HTMLParser):
    """Collects elements and checks that they are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def check(text: str) -> Page:
    """What holds for every page."""
    page = Page(text)
    assert not page.all("script")
    assert not page.all("link")
    for _, attributes in page.found:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href"):
            target = attributes.get(name)
            assert target is None or target.startswith(("data:image/jpeg;base64,", "#"))
    assert "url(#" in text or "url(" not in text
    assert re.findall(r"https?://[^\"' ]*", text.replace("http://www.w3.org/2000/svg", "")) == []
    ids = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for target in re.findall(r'(?:href="#|url\(#)([^")]+)', text):
        assert target in ids
    assert all(figure.get("aria-label") for figure in page.all("svg") if "aria-hidden" not in figure)
    assert all(image.get("alt") for image in page.all("img"))
    assert "None" not in page.text
    assert "nan" not in page.text.split()
    assert NOTICE in page.text
    return page


@pytest.fixture(scope="module")
def record():
    return site_report(site_inputs())


def test_a_site_s_page_is_whole(record):
    page = check(render_site(record))
    assert STAYS in page.text
    assert SYNTHETIC not in page.text
    assert len(page.all("img")) == 24 - (8 - len(record["pictures"]["surest_wrong"]))
    for name in ("confusion", "reliability", "uncertainty", "risk_coverage", "validation", "theta", "weight", "loss"):
        assert CHARTS[name][0] in page.text
        assert CHARTS[name][1] in page.text
    assert page.text.count("How to read this.") == len(page.all("figure")) == 9
    assert "not measured: too few wrong answers" in page.text
    assert "u is 0.550 or more" in page.text
    assert "1 counts of answers" in page.text
    assert CARD["limits"][0] in page.text


def test_a_record_of_before_has_neither_support_nor_units_nor_subgroups(record):
    old = {name: value for name, value in record.items() if name not in ("support", "units", "subgroups")}
    old["figures"] = {name: one for name, one in old["figures"].items() if not name.startswith(("auc_s", "threat"))}
    assert "It tells the grades apart with an AUC of" in render_site(old)


def test_a_page_from_disk_is_the_page_from_memory(record):
    assert render_site(json.loads(json.dumps(record, sort_keys=True))) == render_site(record)
    report = server_report(stored_results({"a": site_inputs(), "b": site_inputs(60)}))
    assert render_server(json.loads(json.dumps(report, sort_keys=True))) == render_server(report)


def test_phantoms_are_named_as_such():
    page = check(render_site(site_report(site_inputs(synthetic=True))))
    assert SYNTHETIC in page.text
    assert STAYS not in page.text  # there are no patients on it
    results = stored_results({"a": site_inputs(synthetic=True), "b": site_inputs()})
    page = check(render_server(server_report(results)))
    assert f"{SYNTHETIC} Phantoms: a." in page.text


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_records_make_whole_pages(name):
    page = check(render_site(site_report(DEGENERATE[name]())))
    assert "no figure" in page.text or "%" in page.text
    check(render_server(server_report(stored_results({"a": DEGENERATE[name]()}))))


@pytest.mark.attack(
    "a hostile site",
    "HTML and script in names of sites, grades and files, and in reasons",
    "they are text in every page",
)
def test_names_files_and_reasons_are_text_and_nothing_else():
    scheme = GradingScheme(grades=(f"a{HOSTILE}", "$x_1$", "_b"), referable=("_b",), ungradable="$x_1$")
    inputs = site_inputs(
        12, scheme, site=HOSTILE, run=HOSTILE, files=[f"{HOSTILE}{at}" for at in range(12)], history=[UNKNOWN]
    )
    page = check(render_site(site_report(inputs)))
    assert HOSTILE in page.text
    results = stored_results({HOSTILE: site_inputs(), "_under": site_inputs(), "x" * 300: site_inputs()})
    results["without_result"] = {HOSTILE: HOSTILE}
    results["steps"][0]["refused"] = {"site-9": HOSTILE}
    page = check(render_server(server_report(results)))
    assert page.text.count(HOSTILE) > 5
    assert "_under" in page.text


def test_the_server_s_page_shows_all_and_holds_no_picture():
    inputs = {f"site-{at}": site_inputs(150 + at, preset("icdr5")) for at in range(3)}
    page = check(render_server(server_report(stored_results(inputs))))
    assert not page.all("img")
    for name in ("reliability", "uncertainty", "risk_coverage", "validation", "theta_sites", "weight", "bytes"):
        assert CHARTS[name][1] in page.text
    assert "the loss became infinite" in page.text
    assert "A dash is a cell that the site withheld" in page.text
    assert "image-0" not in page.text


def test_a_run_of_old_has_a_page_without_counts():
    page = check(render_server(server_report(stored_results({"a": site_inputs()}, counts=False))))
    assert "No site sent counts" in page.text
    assert "Answers by grade" not in page.text


def test_more_sites_than_colours_are_grey_with_their_mean():
    results = stored_results({f"site-{at}": site_inputs(8) for at in range(10)})
    text = render_server(server_report(results))
    check(text)
    assert "#b9c2c9" in text


@pytest.mark.parametrize(
    ("render", "record"),
    [
        (render_site, {"kind": "server", "format": 1}),
        (render_server, {"kind": "site", "format": 1}),
        (render_site, {"kind": "site", "format": 99}),
        (render_server, {}),
    ],
)
def test_another_record_is_refused(render, record):
    with pytest.raises(StateError, match="format 1 is needed"):
        render(record)


def luminance(colour):
    """Relative luminance of #rrggbb or #rgb, as WCAG 2 defines it."""
    digits = colour.lstrip("#")
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_shade_of_the_matrix_can_be_read():
    style = (files("fedretina.report") / "templates" / "style.css").read_text(encoding="utf-8")
    ink = re.search(r"--ink: (#\w+)", style)[1]
    shades = re.findall(r"\.s(\d+) \{ background: (#\w+) !important;(?: color: (#\w+);)? \}", style)
    assert [int(number) for number, _, _ in shades] == list(range(1, 11))
    light = [luminance(background) for _, background, _ in shades]
    assert light == sorted(light, reverse=True)
    for number, background, text in shades:
        dark, bright = sorted((luminance(background), luminance(text or ink)))
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, f".s{number}"


def test_pictures_tell_the_answer_and_tables_are_reached_by_the_keyboard(record):
    page = check(render_site(record))
    server = check(render_server(server_report(stored_results({"a": site_inputs(), "b": site_inputs(60)}))))
    assert all(re.fullmatch(r"answered .+, true grade .+, u \d\.\d+", image["alt"]) for image in page.all("img"))
    for one in (page, server):
        wide = [div for div in one.all("div") if div.get("class") == "scroll"]
        assert wide
        assert all(div["tabindex"] == "0" and div["role"] == "region" and div["aria-label"] for div in wide)


def test_what_was_missed_is_the_first_tile():
    share = {"k": 8, "n": 26, "value": 8 / 26, "low": 0.143, "high": 0.518}
    record = site_report(site_inputs())
    for missed, value, span in ((share, "8 of 26", "14 to 52"), (None, "–", "cannot be told")):
        page = render_site(
            json.loads(json.dumps(record))
            | {"referral": CARD["referral"] | {"test": {"missed": missed, "load": missed}}}
        )
        tile = re.findall(r'<div class="tile.*?</div></div>', page, re.DOTALL)[0]
        assert re.sub("<[^>]*>", " ", tile).split()[0] == "missed"
        assert ("It refers 8 of 26 patients" in tile) == bool(missed)  # who refers everyone misses nobody
        assert value in tile
        assert span in tile


def test_patients_whom_the_gate_refers_are_told_beside_those_of_the_rule():
    share, more = ({"k": k, "n": 37, "value": k / 37, "low": 0.1, "high": 0.9} for k in (18, 22))
    record = site_report(site_inputs())
    old, new = (
        render_site(record | {"referral": CARD["referral"] | {"test": {"missed": share, "load": share, **gate}}})
        for gate in ({}, {"gated_load": more})
    )
    assert "with the gate as well" not in old
    assert "It refers 18 of 37 patients, 22 with the gate as well" in new
    (row,) = re.findall(r"<tr><td>with the gate as well.*?</tr>", new)
    assert "22 of 37" in row


@pytest.mark.parametrize(("threshold", "told"), [(0.2, True), (None, False)])
def test_a_chance_of_disease_stands_among_the_reasons_to_refer_where_it_is_one(threshold, told):
    promise = {"reason": "kept", "missed": 0.05, "sure": 0.9, "patients": 90, "needed": 45, "passed": 1, "allowed": 2}
    report = site_report(site_inputs(card=CARD | {"promise": promise | {"threshold": threshold}}))
    text = " ".join(check(render_site(report)).text.split())
    assert ("or has a chance of disease that the site does not let pass." in text) is told
    assert ("With doubtful answers and those with a chance of disease that the site does not let pass" in text) is told
    del report["by_chance"]  # as a record of before
    assert "is called ungradable, or is doubtful." in check(render_site(report)).text


def test_nothing_is_said_to_be_chosen_where_a_run_makes_one_model():
    report = server_report(stored_results({"site-1": site_inputs(40), "site-2": site_inputs(50)}))
    assert "chosen by the mean validation AUC" in render_server(report)
    one = report["rounds"][0] | {"step": "sums-0000", "task": "sums"}
    assert "chosen by" not in render_server(report | {"rounds": [one], "chosen": "sums-0000"})
