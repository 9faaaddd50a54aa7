"""The tables of docs/governance.md name every file that a server and its sites have written."""

import re
from fnmatch import fnmatchcase

import pytest
from jobs import SITES

from federation import REPOSITORY

pytestmark = [pytest.mark.flare, pytest.mark.provisioned]

PAGE = REPOSITORY / "docs" / "governance.md"
JOB = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
STEP = re.compile(r"(?<=/)[a-z]+-\d{4}(?=[.@])")


def named(heading):
    """The patterns of files in the first column of the table below a heading."""
    part = PAGE.read_text(encoding="utf-8").partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    rows = [line for line in part.splitlines() if line.startswith("| ")][1:]
    assert all(len(row.strip("| ").split(" | ")) == 4 for row in rows)
    found = [place for row in rows for place in re.findall(r"`((?:KIT|RUNS)/[^`]+)`", row.split(" | ")[0])]
    assert found
    return found


def unnamed(places, patterns):
    """The files that no pattern stands for."""
    return sorted({place for place in places if not any(fnmatchcase(place, pattern) for pattern in patterns)})


def written(folder, begin):
    """Files below a folder; what the tests' own start of a kit prints is none of a hospital's."""
    found = (path for path in folder.rglob("*") if path.is_file() and path != folder / "console.txt")
    return [f"{begin}/{path.relative_to(folder).as_posix()}" for path in found]


def plain(place, site):
    """A file by the words of the page: a job's id, a step, a run and a site are no names."""
    place = STEP.sub("STEP", JOB.sub("JOB", place)).replace(f"app_{site}", "app_SITE")
    place = re.sub(r"^RUNS/(?!cache|status|noise|privacy)[^/]+/", "RUNS/RUN/", place)
    place = re.sub(r"storage/runs/(?!status)[^/]+/", "storage/runs/RUN/", place)
    return place.replace(f"/{site}/", "/SITE/").replace(f"/{site}-check/", "/SITE-check/")


def test_every_file_of_a_site_stands_in_the_table(federation):
    patterns = named("At a hospital")
    for site in SITES:
        places = written(federation.kit(site), "KIT") + written(federation.hospital(site) / "runs", "RUNS")
        assert unnamed([plain(place, site) for place in places], patterns) == []
    plains = {plain(place, site) for place in places}
    for must in ("RUNS/RUN/SITE/ledger.jsonl", "RUNS/RUN/SITE/final/report.json", "RUNS/RUN/SITE/STEP.safetensors"):
        assert must in plains  # the runs were really there
    assert unnamed(["KIT/elsewhere/x", "RUNS/RUN/SITE/patients.csv"], patterns) != []


def test_every_file_of_the_server_stands_in_the_table(federation):
    places = [plain(place, "server-has-no-site") for place in written(federation.kit("server"), "KIT")]
    assert unnamed(places, named("At the server")) == []
    assert "KIT/storage/runs/RUN/server/STEP.safetensors" in places
    assert "KIT/audit.jsonl" in places
