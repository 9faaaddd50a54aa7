"""The page of a site and of the server: true whether something runs or not, told from an old copy, free of names."""

import base64
import hashlib
import json
import re
import time

import pytest

from fedretina.kit.end_status import EndStatus, Process, RunStatus
from fedretina.kit.findings import bad, good
from fedretina.kit.site_check import SILENT_S
from fedretina.report.status_page import moment, span, status_page
from fedretina.tracking.last_step import LAST_STEP, LastStep, read_last_step

NOW = time.time()
LAST = {"task": "train", "phase": "train", "round": 3, "rounds": 10, "attempt": 1, "state": "working", "faults": []}
PROCESS = Process(NOW, NOW - 7200, False, True, NOW - 3600, {}, [])
SITE = EndStatus(
    role="site",
    name="site-1",
    organisation="hospital-1",
    written=NOW,
    kept_fresh=True,
    process=PROCESS,
    runs=[RunStatus("spring", LAST, 5, 2_000_000, 9_000_000, 0, NOW)],
    more_runs=0,
    findings=[good("disk", "812 GB of 1000 GB free"), bad("certificate", "ends", "renew it.")],
    faults=[(NOW, "spring", "the trainer died: give it more memory.")],
    approvals=None,
    bytes_today=2_000_000,
    bytes_all=9_000_000,
    messages=5,
    refused_jobs=0,
    versions="fedretina",
)
REPORT = {
    **{"run": "spring", "done": 3, "steps": 12, "task": "train", "phase": "train", "round": 4, "rounds": 10},
    **{"attempt": 1, "answered": ["site-1"], "waiting": ["site-2"], "refused": {}, "seconds": 9.0},
    "seconds_left": 8200.0,
}
TOLD = {"state": "running", "report": REPORT, "patients": 410, "patients_of": 1, "trained": 2, "faults": []}
SERVER = SITE._replace(
    role="server",
    process=PROCESS._replace(sites={"site-1": NOW - 60}),
    runs=[RunStatus("spring", TOLD, 0, 0, 0, 0, NOW)],
)


@pytest.fixture(autouse=True)
def at_that_moment(monkeypatch):
    """The file is imported long before its tests run, and an old page says that it is old."""
    monkeypatch.setattr(time, "time", lambda: NOW)


def words(page):
    """The page's text, without tags, styles and scripts."""
    bare = re.sub(r"(?s)<(style|script).*?</\1>|<[^>]+>", " ", page)
    return " ".join(bare.split())


def test_a_site_that_works():
    page = words(status_page(SITE))
    assert f"Connected since {moment(PROCESS.since)}" in page
    assert "train, round 3 of 10" in page
    assert "works on it" in page
    assert "2.0 MB in all 9.0 MB in 5 messages" in page
    assert "certificate : ends To mend it: renew it." in page
    assert "the trainer died: give it more memory." in page
    assert "Approvals" not in page
    assert "Approvals None." in words(status_page(SITE._replace(approvals=[])))


@pytest.mark.parametrize(
    ("process", "said"),
    [
        (None, "no process of this end has said anything yet"),
        (PROCESS._replace(connected=False), f"Not connected since {moment(PROCESS.since)}"),
        (PROCESS._replace(stopped=True), "Stopped since"),
        (PROCESS._replace(written=NOW - SILENT_S - 60), "No word from the service since"),
    ],
    ids=["no process", "not connected", "stopped", "silent"],  # the sentences tell the minute at which a worker began
)
def test_a_site_that_is_not_connected_says_so_and_claims_no_running_work(process, said):
    page = words(status_page(SITE._replace(process=process)))
    assert said in page
    assert f"Connected since {moment(PROCESS.since)}" not in page
    if process is None or process.stopped or process.silent:
        assert "was at work when the service ended" in page
        assert "Last run" in page


def test_the_server_tells_sites_patients_and_time():
    page = words(status_page(SERVER))
    assert "Sites connected 1" in page
    assert "410 at 1 site, and those of 1 site that do not say" in page
    assert "about 2 h 17 min" in page
    assert "site-1 connected since" in page
    assert "has answered" in page
    assert "site-2 not connected , and asked by the running step" in page
    stopped = words(status_page(SERVER._replace(process=PROCESS._replace(stopped=True))))
    assert "not known while the server is not running" in stopped
    assert "about 2 h" not in stopped


def test_an_old_copy_is_told_by_words_and_by_the_only_script_that_may_run():
    page = status_page(SITE)
    (script,) = re.findall(r"(?s)<script>(.*?)</script>", page)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page
    assert f'data-written="{int(NOW)}" data-old="300"' in page
    assert "If that is more than 5 minutes ago, do not rely on it." in words(page)
    assert '<meta http-equiv="refresh" content="60">' in page
    by_hand = status_page(SITE._replace(kept_fresh=False))
    assert "refresh" not in by_hand
    assert "by hand" in words(by_hand)


def test_names_from_elsewhere_are_escaped():
    evil = "<script>alert(1)</script>"
    page = status_page(SITE._replace(name=evil, faults=[(NOW, evil, evil)]))
    assert page.count("<script>") == 1
    assert "&lt;script&gt;alert(1)" in page


def test_lengths_of_time():
    assert [span(found) for found in (None, 5, 90, 8200, 400_000)] == [
        *("–", "less than a minute", "2 min", "2 h 17 min", "4 days"),
    ]


def test_a_last_step_that_cannot_be_written_costs_a_warning_and_keeps_faults_across_processes(tmp_path, caplog):
    folder = tmp_path / "site-1"
    for at in range(7):
        LastStep(folder, "spring").note(state="failed", fault=f"fault {at}")
    found = read_last_step(folder)
    assert [fault["words"] for fault in found["faults"]] == [f"fault {at}" for at in (6, 5, 4, 3, 2)]
    last = LastStep(folder, "spring")
    (folder / LAST_STEP).unlink()
    (folder / LAST_STEP).mkdir()  # so that no file can take its place
    (folder / LAST_STEP / "in-the-way").touch()
    for _ in range(3):
        last.note(state="working")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert read_last_step(folder) is None
    (folder / LAST_STEP / "in-the-way").unlink()
    (folder / LAST_STEP).rmdir()
    last.note(state="answered")
    assert json.loads((folder / LAST_STEP).read_text())["state"] == "answered"
