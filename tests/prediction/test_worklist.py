"""The work list: order, joining of reasons, tables; and the page against names that would run."""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from fedretina.prediction.drift import drift
from fedretina.prediction.evidence import EvidenceMap
from fedretina.prediction.eyes import Owner
from fedretina.prediction.photographs import SIDE, thumbnail
from fedretina.prediction.phrases import Phrases
from fedretina.prediction.predictor import ImageRow
from fedretina.prediction.worklist import readable, stops, work_list, write_images, write_patients
from fedretina.prediction.worklist_page import Pictures, summary_words, worklist_page
from fedretina.report.page_templates import TEMPLATES
from fedretina.settings.scheme import GradingScheme, preset
from fedretina.storage import read_json
from fedretina.uncertainty.referral import UNREADABLE, Referral, refer

SCHEME = preset("icdr5_ungradable")
CHANCES = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])


def row(file, grade, u):
    return ImageRow(file, grade, np.roll(CHANCES, grade), u, refer(grade, u, 0.5, SCHEME), "")


def unread(file):
    return ImageRow(file, None, None, None, UNREADABLE, "the file is empty.")


CASE = [
    (row("a1", 0, 0.1), Owner("sure", "left")),
    (row("a2", 1, 0.2), Owner("sure", "right")),
    (row("b1", 0, 0.3), Owner("one doubtful eye", "right")),
    (row("b2", 0, 0.9), Owner("one doubtful eye", "left")),
    (row("c1", 4, 0.2), Owner("severe", "")),
    (row("d1", 0, 0.05), Owner("half read", "left")),
    (unread("d2"), Owner("half read", "right")),
    (unread("e1"), Owner("not read", "")),
    (row("f1", 5, 0.4), Owner("ungradable eye", "left")),
    (row("f2", 3, 0.1), Owner("ungradable eye", "right")),
    (row("g1", 5, 0.4), Owner("ungradable", "left")),
]


def listed(case=CASE):
    rows, owners = zip(*case, strict=True)
    return work_list(iter(rows), owners, SCHEME)


def test_sight_at_stake_comes_first_then_what_is_not_known_then_other_grades_then_doubt():
    unlike = row("h1", 0, 0.1)._replace(referral=Referral(True, ("unlike this site's photographs",)), fault="odd.")
    refused = ImageRow("i1", None, None, None, Referral(True, ("another kind of image",)), "no photograph.")
    more = [
        (row("j1", 2, 0.3), Owner("moderate", "")),
        (unlike, Owner("another camera", "")),
        (refused, Owner("a scan", "")),
        (row("k1", 4, 0.9), Owner("doubtful proliferative", "")),
        (row("l1", 0, 0.1)._replace(referral=Referral(True, ("unusual for this site",))), Owner("unusual", "")),
    ]
    names = [patient.name for patient in listed([*CASE, *more])]
    assert names[:3] == ["doubtful proliferative", "severe", "ungradable eye"]
    assert names[3:8] == ["ungradable", "another camera", "half read", "a scan", "not read"]
    assert names[8:] == ["moderate", "one doubtful eye", "unusual", "sure"]
    assert stops(next(patient for patient in listed(more) if patient.name == "a scan")) == ["another kind of image"]


def test_a_patient_is_as_bad_as_the_worst_of_the_photographs():
    found = {patient.name: patient for patient in listed()}

    def said(name):
        return found[name].worst, found[name].uncertainty, found[name].referral

    assert said("sure") == ((1,), 0.2, (False, ()))
    assert said("one doubtful eye") == ((0,), 0.9, (True, ("doubtful",)))
    assert said("severe") == ((4,), 0.2, (True, ("referable grade",)))
    assert said("half read") == ((0,), 0.05, (True, ("unreadable image",)))
    assert said("not read") == ((), None, (True, ("unreadable image",)))
    assert said("ungradable eye") == ((3,), 0.4, (True, ("referable grade", "ungradable")))
    assert said("ungradable") == ((5,), 0.4, (True, ("ungradable",)))
    assert [one.row.file for one in found["one doubtful eye"].photographs] == ["b2", "b1"]  # left, right


def test_kinds_of_disease_have_no_order_and_a_naevus_does_not_hide_a_melanoma(tmp_path):
    """Melanoma is the first class of its scheme, and carcinoma the last."""
    scheme, names = preset("isic8"), ("mel", "nv", "bcc", "ak", "bkl")

    def picture(file, name, u=0.1):
        grade = scheme.grades.index(name)
        return ImageRow(file, grade, np.full(8, 0.125), u, refer(grade, u, 0.5, scheme), "")

    rows = [picture(name, name, 0.1 + at / 100) for at, name in enumerate(names)] + [
        unread("none"),
        picture("mole", "nv"),
    ]
    owners = [
        Owner(file, "") for file in ("mel and nv", "mel and nv", "bcc and ak", "bcc and ak", "bkl", "none", "mole")
    ]
    found = work_list(rows, owners, scheme, ordered=False)
    # What is to refer comes before the photograph without an answer; the larger doubt decides, and not the class.
    assert [patient.name for patient in found] == ["bcc and ak", "mel and nv", "none", "bkl", "mole"]
    write_patients(tmp_path / "p.csv", found, scheme)
    with open(tmp_path / "p.csv", newline="") as handle:
        assert [line["worst_grade"] for line in csv.DictReader(handle)] == ["bcc; ak", "mel", "", "bkl", "nv"]


def test_grades_that_the_site_calls_vision_threatening_come_first():
    scheme = preset("octdl7").model_copy(update={"vision_threatening": ("rao",)})
    assert [scheme.severity(at, False) for at in range(7)] == [0, 7, 7, 7, 7, 7, 14]
    assert scheme.worst([0, 1, 6, 2], False) == (6,)
    assert scheme.worst([0, 2, 1, 1], False) == (1, 2)
    assert preset("icdr5_ungradable").worst([5, 0], True) == (0,)
    assert preset("icdr5_ungradable").worst([5, 5], True) == (5,)
    assert preset("icdr5").worst([], True) == ()
    assert [preset("icdr5").first_classes(ordered) for ordered in (True, False)] == [{3, 4}, {3, 4}]
    own = GradingScheme(grades=("none", "some", "more", "most"), labels={}, referable=("some", "more", "most"))
    assert [own.first_classes(ordered) for ordered in (True, False)] == [{2, 3}, {1, 2, 3}]


@pytest.mark.parametrize(
    ("eyes", "words"),
    [
        (("left", "right"), "both eyes"),
        (("left",), "left eye only"),
        (("right", "right"), "right eye only, 2 photographs"),
        (("left", "right", "right"), "both eyes, 3 photographs"),
        (("",), "1 photograph, eye not known"),
        (("", ""), "2 photographs, eyes not known"),
        (("left", ""), "left eye only, 1 photograph, eye not known"),
    ],
)
def test_what_is_known_of_the_eyes(eyes, words):
    case = [(row(f"{at}.jpg", 0, 0.1), Owner("p", eye)) for at, eye in enumerate(eyes)]
    assert listed(case)[0].eyes == words


def test_within_a_level_the_worse_grade_then_the_larger_doubt_then_the_name():
    case = [(row(name, grade, 0.3), Owner(name, "")) for name, grade in (("c", 0), ("b", 0), ("a", 0), ("d", 3))]
    case.append((row("e", 0, 0.4), Owner("e", "")))
    assert [patient.name for patient in listed(case)] == ["d", "e", "a", "b", "c"]


def test_the_tables_hold_every_photograph_and_patient(tmp_path):
    write_images(tmp_path / "i.csv", listed(), SCHEME)
    write_patients(tmp_path / "p.csv", listed(), SCHEME)
    with open(tmp_path / "i.csv", newline="") as handle:
        images = {line["file"]: line for line in csv.DictReader(handle)}
    with open(tmp_path / "p.csv", newline="") as handle:
        patients = list(csv.DictReader(handle))
    assert set(images) == {said.file for said, _ in CASE}
    for said, owner in CASE:
        line = images[said.file]
        assert (line["patient"], line["eye"]) == owner
        assert line["refer"] == ("yes" if said.referral.refer else "no")
        assert line["reasons"] == "; ".join(said.referral.reasons)
        if said.grade is None:
            assert (line["grade"], line["u"], line["p_no_dr"], line["fault"]) == ("", "", "", "the file is empty.")
        else:
            assert line["grade"] == SCHEME.grades[said.grade]
            assert float(line["u"]) == said.uncertainty
            assert [float(line[f"p_{grade}"]) for grade in SCHEME.grades] == said.probabilities.tolist()
    assert [line["patient"] for line in patients] == [patient.name for patient in listed()]
    assert patients[3] == {
        "patient": "half read",
        "refer": "yes",
        "reasons": "unreadable image",
        "worst_grade": "no_dr",
        "largest_u": "0.05",
        "eyes": "both eyes",
        "photographs": "2",
        "without_answer": "1",
    }


HOSTILE = ["=cmd|' /C calc'!A0", "+1", "-1", "@x", 'a,"b"', "two\nlines", "\udcff.jpg", "\x00\x1b[31m", "\u202egpj.exe"]


def test_a_table_runs_nothing_in_a_spreadsheet_and_keeps_its_lines(tmp_path):
    write_images(tmp_path / "i.csv", listed([(row(name, 0, 0.1), Owner(name, "")) for name in HOSTILE]), SCHEME)
    with open(tmp_path / "i.csv", newline="", encoding="utf-8") as handle:
        lines = list(csv.reader(handle))
    assert len(lines) == 1 + len(HOSTILE)
    for line in lines:
        assert not line[0].startswith(("=", "+", "-", "@"))
        assert all(cell.isprintable() for cell in line)


def test_readable_keeps_what_one_can_read():
    assert readable("Müller, 10 \u4f60_left.jpg") == "Müller, 10 \u4f60_left.jpg"
    assert readable("a\nb") == "a\\nb"


class Page(HTMLParser):
    """Tags, their attributes and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.inside = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_data(self, data):
        if self.inside and self.inside[-1] not in ("script", "style"):
            self.words.append(data)

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass


@pytest.fixture
def card(hospital):
    return read_json(hospital.final / "card.json")


def page(card, patients, pictures=None, notes=("Joined by hand.",), full=None, language="en"):
    shown = Pictures(pictures or {}, full or {}, "worklist_pictures")
    return worklist_page(card, SCHEME, patients, shown, notes, drift(card, patients), "ab12", language)


def test_the_page_says_what_a_doctor_must_know(card):
    text = re.sub(r"\s+", " ", " ".join(Page(page(card, listed()).split("</head>")[1]).words))
    assert text.index("not a medical device") < text.index("Work list")
    for said in (
        "11 photographs of 7 patients.",
        "6 of them to refer (86 %)",
        "Joined by hand.",
        "left eye only",
        "the file is empty.",
        "On this site's test patients the same rule referred",
        card["model_digest"][:12],
        card["run"],
        "sight may be at stake",
        "no DR",
        "stays in the hospital",
    ):
        assert said in text, said


def test_names_that_would_run_are_only_text(card):
    evil = [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "'><svg onload=alert(1)>",
        "{{ 7*7 }}{% x %}",
        *HOSTILE,
    ]
    text = page(card, listed([(row(name, 0, 0.1), Owner(name, "")) for name in evil]), notes=evil)
    read = Page(text)
    tags = [tag for tag, _ in read.tags]
    assert tags.count("script") == 1
    assert [attributes for tag, attributes in read.tags if tag == "img"] == [{"id": "view-picture", "alt": ""}]
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith("on")]
    assert "alert(1)" in " ".join(read.words)
    assert "{{ 7*7 }}" in " ".join(read.words)
    assert text.encode("utf-8").decode() == text


def test_the_page_loads_nothing_and_runs_its_own_script_only(card):
    text = page(card, listed(), {"a1": "data:image/jpeg;base64,AAAA"}, full={"a1": "worklist_pictures/0001.png"})
    words = re.findall(r'alt="([^"]+)"', text)
    assert words
    assert all(re.fullmatch(r"(left eye|right eye|eye not known), (.+, u \d\.\d\d|no answer)", one) for one in words)
    read = Page(text)
    policy = next(a["content"] for tag, a in read.tags if tag == "meta" and "http-equiv" in a)
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    for _, attributes in read.tags:
        for name in ("src", "href", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:image/jpeg")), attributes
    assert [a["data-full"] for tag, a in read.tags if tag == "figure"].count("worklist_pictures/0001.png") == 1
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text


def test_maps_of_a_list_share_one_scale():
    strong, weak = (EvidenceMap(scale * np.array([[1.0, -0.5], [0.0, 0.25]]), 0.0) for scale in (2.0, 0.2))
    drawn = Pictures({}, {}, "", {}, {"a": strong, "b": weak}).drawn_maps()
    assert json.loads(drawn["a"]) == [2, 2, 100, -51, 0, 25]
    assert json.loads(drawn["b"]) == [2, 2, 10, -5, 0, 3]
    assert Pictures({}, {}).drawn_maps() == {}


def test_the_script_finds_what_the_page_gives_it(card):
    read = Page(page(card, listed()))
    rows = [attributes for tag, attributes in read.tags if tag == "li" and attributes.get("class") == "patient"]
    photos = [a for tag, a in read.tags if tag == "figure"]
    assert [a["data-rank"] for a in rows] == [str(rank) for rank in range(1, 8)]
    assert [a["data-name"] for a in rows] == [patient.name for patient in listed()]
    assert [a["data-refer"] for a in rows] == ["yes"] * 6 + ["no"]
    assert [a["data-grade"] for a in rows] == [str(patient.severity) for patient in listed()]
    assert [patient.severity for patient in listed()] == [16, 15, 23, 0, -1, 0, 1]
    assert [a["data-other"] for a in rows] == ["yes", "yes", "yes", "yes", "yes", "no", "no"]  # referred but for doubt
    listed_files = [one.row.file for patient in listed() for one in patient.photographs]
    assert [a["data-file"] for a in photos] == listed_files
    assert [a["data-answer"] for a in photos if a["data-file"] in ("c1", "d2", "g1")] == [
        "proliferative",
        "ungradable",
        "",
    ]
    body = next(attributes for tag, attributes in read.tags if tag == "body")
    assert json.loads(body["data-grades"])[1] == ["mild", "1 mild"]
    assert (body["data-ungradable"], body["data-list"]) == ("ungradable", "ab12")
    named = {attributes.get("id") for _, attributes in read.tags}
    script = (TEMPLATES / "worklist.js").read_text()
    assert set(re.findall(r'(?:byId|getElementById)\("([\w-]+)"\)', script)) <= named
    assert set(re.findall(r"form\.elements\.(\w+)", script)) <= {a.get("name") for _, a in read.tags}
    words = json.loads(body["data-words"])
    asked = set(re.findall(r'(?:words\[|say\()"([a-z_.]+)"', script)) | set(
        re.findall(r'"((?:controls|slider)\.[a-z_.]+)"', script)
    )
    assert asked <= set(words)
    scripted = [a for _, a in read.tags if "scripted" in (a.get("class") or "").split()]
    assert len(scripted) == 4
    assert all("hidden" in a for a in scripted)  # without the script there is nothing that does not work


def test_a_phantom_model_and_a_rule_that_refers_everyone_are_marked(card):
    assert card["synthetic"] is False
    assert "no real patient" not in page(card, listed()).split("Limits of this model")[0]
    marked = page(card | {"synthetic": True}, listed())
    assert "no real patient" in marked.split("<h1>")[0]
    every = card["referral"] | {"threshold": 0.0, "reason": "too_few_images"}
    assert "This model refers every patient." in page(card | {"referral": every}, listed())
    some = card["referral"] | {"threshold": 0.4, "reason": "measured"}
    assert "This model refers every patient." not in page(card | {"referral": some}, listed())


def test_no_answer_is_shown_as_certain(card):
    sure = row("a", 0, 0.1)._replace(probabilities=np.array([0.9999, 0.0001, 0, 0, 0, 0]))
    text = page(card, listed([(sure, Owner("a", ""))])).split('id="read"')[0]
    assert ">\u00a099\u00a0%" in html.unescape(text)
    assert "<\u00a01\u00a0%" in html.unescape(text)
    assert "100\u00a0%" not in text
    assert "10\u00a0%" in page(card, listed())


def test_a_rule_that_refers_nearly_everyone_is_said_to(card):
    def expecting(value):
        load = {"k": 1, "n": 2, "value": value, "low": 0.0, "high": 1.0}
        test = card["referral"]["test"] | {"load": load}
        return card | {"referral": card["referral"] | {"threshold": 0.3, "test": test}}

    assert "only the order of this list" in page(expecting(0.95), listed())
    assert "only the order of this list" not in page(expecting(0.5), listed())


def test_without_a_test_split_the_page_promises_nothing(card):
    text = page(card | {"referral": card["referral"] | {"test": None}}, listed())
    assert "What to expect was not measured." in text


@pytest.mark.parametrize(("threshold", "told"), [(0.2, True), (None, False)])
def test_a_chance_of_disease_stands_among_the_reasons_to_refer_where_it_is_one(card, threshold, told):
    promise = {"reason": "kept", "missed": 0.05, "sure": 0.9, "patients": 90, "needed": 45, "passed": 1, "allowed": 2}
    text = page(card | {"promise": promise | {"threshold": threshold}}, listed())
    assert (Phrases().phrase("read.chance") in text) is told


def test_a_small_threshold_does_not_read_as_0(card):
    text = page(card | {"referral": card["referral"] | {"threshold": 1.2e-8}}, listed())
    assert "u is 0.000000012 or more" in text
    assert "0.000 or more" not in text


def test_same_input_same_page(card):
    assert page(card, listed()) == page(card, listed())


def test_the_summary_counts_patients():
    say = Phrases()
    assert summary_words(listed(CASE[:2]), say) == ["2 photographs of 1 patient.", "0 of them to refer (0 %)."]
    assert "by reason: 1 doubtful" in summary_words(listed(CASE[:4]), say)[1]


def test_a_thumbnail_is_small_and_keeps_shape_and_colour(tmp_path):
    Image.new("RGB", (800, 400), (200, 30, 10)).save(tmp_path / "red.png")
    uri = thumbnail(tmp_path / "red.png")
    data = base64.b64decode(uri.removeprefix("data:image/jpeg;base64,"))
    (tmp_path / "t.jpg").write_bytes(data)
    small = Image.open(tmp_path / "t.jpg")
    assert small.size == (SIDE, SIDE // 2)
    assert np.allclose(np.asarray(small).mean((0, 1)), (200, 30, 10), atol=4)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (900, 900, 3), dtype=np.uint8)).save(
        tmp_path / "noise.png"
    )
    assert len(thumbnail(tmp_path / "noise.png")) < 40_000
    Image.new("RGB", (1, 1000)).save(tmp_path / "line.png")
    assert thumbnail(tmp_path / "line.png") is not None
    (tmp_path / "bad.png").write_bytes(b"")
    assert thumbnail(tmp_path / "bad.png") is None
