"""`fedretina data check` as its user meets it, and the hospital's page about it."""

import json
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.data.check.rules import CODES, findings_table
from hospital_folder import mend, put_faults, write_photographs
from little_eyes import GRADES, eye, save, write_rows, write_site
from real_sites import SITES, write_real_sites

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "for_hospitals.md"
FILES = {"check.json", "check.html", "contact_sheet.png"}


def run(*words):
    return CliRunner().invoke(main, ["data", "check", *map(str, words)])


def test_a_clean_site(clean_site):
    done = run(clean_site, "--image-size", "128")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == "north: 40 images listed, 40 can be used, 5 grades. Nothing found."
    assert done.stdout.splitlines()[-1] == "This site can join."
    assert re.search(r"^moderate +2 +1 +5 +8$", done.stdout, re.MULTILINE)
    assert done.stderr == ""


def test_warnings_end_with_one_and_errors_with_two(clean_site, tmp_path):
    done = run(clean_site / "site.yaml")  # images of 160 pixels for a network of 256
    assert done.exit_code == 1
    assert "WARNING image_small (40 cases)\n" in done.stdout
    assert "    and 37 more\n" in done.stdout
    rows = write_site(tmp_path)
    rows[0][1] = "9"
    write_rows(tmp_path, rows)
    done = run(tmp_path)
    assert done.exit_code == 2
    assert f"ERROR label_outside_scheme\n  {CODES['label_outside_scheme'].meaning}\n    row 2: " in done.stdout
    assert done.stdout.index("ERROR") < done.stdout.index("WARNING")


def test_json(clean_site):
    done = run(clean_site / "manifest.csv", "--scheme", "icdr5", "--images", clean_site / "images", "--quick", "--json")
    assert done.exit_code == 0
    record = json.loads(done.stdout)
    assert record["exit_code"] == 0
    assert record["quick"] is True
    assert record["counts"]["val"] == dict.fromkeys(GRADES, 1)
    assert [finding["code"] for finding in record["findings"]] == ["pixels_not_checked"]


def test_what_is_written(clean_site, tmp_path):
    out = tmp_path / "a" / "b"
    done = run(clean_site, "--out", out, "--json", "--image-size", "128")
    assert done.exit_code == 0
    assert {path.name for path in out.iterdir()} == FILES
    assert json.loads((out / "check.json").read_text()) == json.loads(done.stdout)
    assert "it stays at the site" in done.stderr
    page = (out / "check.html").read_text()
    assert page.count("<figure") == 40
    assert "http" not in page.replace('http-equiv="', "")
    assert "<script" not in page
    assert "stays at this hospital" in page
    assert "SYNTHETIC" not in page
    assert str(clean_site) not in page
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    run(clean_site, "--out", out, "--image-size", "128", "--workers", "3")
    assert before == {path.name: path.read_bytes() for path in out.iterdir()}


def test_the_pictures_are_cropped_as_the_run_will_crop(tmp_path):
    rows = write_site(tmp_path, (1, 1, 1))
    for at, row in enumerate(rows):
        save(tmp_path / "images" / row[0], eye(at, 160, 400))
    sheets = []
    for option in ("--crop", "--no-crop"):
        run(tmp_path, "--out", tmp_path / option, option)
        sheets.append((tmp_path / option / "contact_sheet.png").read_bytes())
    assert sheets[0] != sheets[1]


def test_oct_scans_may_be_grey(tmp_path):
    for at, row in enumerate(write_site(tmp_path)):
        save(tmp_path / "images" / row[0], np.repeat(eye(at)[..., 1:2], 3, axis=2))
    assert "image_grey" in run(tmp_path, "--image-size", "128").stdout
    assert run(tmp_path, "--image-size", "128", "--modality", "oct").exit_code == 0


def test_quick_writes_no_pictures(clean_site, tmp_path):
    assert run(clean_site, "--out", tmp_path / "out", "--quick").exit_code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES - {"contact_sheet.png"}
    assert "No image was opened." in (tmp_path / "out" / "check.html").read_text()


def test_names_are_escaped_and_the_images_of_a_finding_are_shown(tmp_path):
    rows = write_site(tmp_path)
    odd = '<b onclick="x()">&.png'
    save(tmp_path / "images" / odd, eye(5)[..., ::-1])
    write_rows(tmp_path, [*rows, [odd.replace('"', '""').join('""'), "0", "<i>p</i>", "train"]])
    assert run(tmp_path, "--out", tmp_path / "out", "--image-size", "128").exit_code == 1
    page = (tmp_path / "out" / "check.html").read_text()
    assert "<b onclick" not in page
    assert "<i>p" not in page
    finding = page[page.index('id="channels_swapped"') :]
    finding = finding[: finding.index("</article>")]
    assert finding.count("data:image/jpeg;base64,") == 1
    assert "&lt;b onclick=" in finding


def test_phantoms_are_marked(tmp_path):
    from fedretina.data.phantoms.canvas import write_png

    for at, row in enumerate(write_site(tmp_path)):
        write_png(tmp_path / "images" / row[0], eye(at))
    done = run(tmp_path, "--out", tmp_path / "out", "--image-size", "128")
    assert done.exit_code == 0
    assert "The images are synthetic" in done.stdout
    page = (tmp_path / "out" / "check.html").read_text()
    assert "SYNTHETIC IMAGES" in page
    assert "stays at this hospital" not in page
    assert json.loads((tmp_path / "out" / "check.json").read_text())["synthetic"] is True


def test_a_folder_a_class(tmp_path):
    for at, grade in enumerate(GRADES):
        for number in range(4):
            save(tmp_path / "set" / grade / f"{number}.jpg", eye(10 * at + number))
    save(tmp_path / "set" / "mild" / "copy.jpg", eye(0))
    done = run(tmp_path / "set", "--image-size", "128", "--out", tmp_path / "set" / "checked")
    assert done.exit_code == 2
    assert "duplicate_with_other_label" in done.stdout
    assert "mild/copy.jpg" in done.stdout
    # What the check wrote into the folder is no class the next time.
    again = run(tmp_path / "set", "--image-size", "128", "--out", tmp_path / "set" / "checked")
    assert again.stdout == done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("none.yaml",), "does not exist"),
        (("site.yaml", "--image-size", "8"), "not in the range"),
        (("manifest.csv",), "--scheme"),
        (("manifest.csv", "--grades", "a"), "two grades"),
        (("bad.yaml",), "holds no settings"),
        (("site.yaml", "--out", "site.yaml"), "is a file"),
    ],
)
def test_what_cannot_be_checked_ends_with_two(tmp_path, monkeypatch, words, says):
    write_site(tmp_path, (1, 1, 1))
    (tmp_path / "bad.yaml").write_text("- 1\n")
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert done.exit_code == 2
    assert says in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(clean_site, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    done = run(clean_site, "--quick", "--out", tmp_path / "locked" / "out")
    assert done.exit_code == 2
    assert "choose another folder" in done.stderr


def test_the_help_says_what_the_codes_mean():
    done = run("--help")
    assert done.exit_code == 0
    for words in ("site.yaml", "manifest.csv", "GRADE/*.jpg", "0  nothing", "1  warnings", "2  errors"):
        assert words in done.stdout


def test_the_hospitals_page_has_the_table_of_the_code():
    page = PAGE.read_text(encoding="utf-8")
    begin, end = "<!-- begin findings -->\n", "\n<!-- end findings -->"
    assert page.count(begin) == page.count(end) == 1
    table = page[page.index(begin) + len(begin) : page.index(end)]
    assert table == findings_table(), "put what fedretina.data.check.rules.findings_table() gives into the page"


@pytest.mark.slow
def test_the_hospitals_page_shows_what_its_commands_print(tmp_path, monkeypatch):
    """The three commands of the page, on the folder that it speaks of; between the first two the faults are mended."""
    monkeypatch.chdir(tmp_path)
    photographs = Path("photographs")
    write_photographs(photographs)
    put_faults(photographs)
    shown = re.findall(r"^```\n\$ (fedretina [^\n]*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(shown) == 3
    for number, (command, output) in enumerate(shown):
        if number == 1:
            mend(photographs)
        done = CliRunner().invoke(main, shlex.split(command)[1:])
        assert done.output == output


@pytest.mark.real
@pytest.mark.slow
def test_real_sites_get_few_warnings_and_known_copies_are_found(shared, tmp_path):
    """Two sites whole, 3,319 images whose seven and one pairs of copies were looked at, and a third of two others."""
    write_real_sites(shared, tmp_path)
    for site in ("eyepacs", "odir5k"):
        path = tmp_path / site / "manifest.csv"
        head, *rows = path.read_text().splitlines()
        path.write_text("\n".join([head, *rows[::3]]) + "\n")
    pairs = {"aptos2019": 7, "idrid": 1}
    for site in SITES:
        done = run(tmp_path / site / "site.yaml", "--image-size", "128", "--json")
        assert done.exit_code == 1
        found = {one["code"]: one for one in json.loads(done.stdout)["findings"] if one["severity"] == "warning"}
        assert found.pop("near_duplicate", {"count": 0})["count"] == pairs.get(site, 0)
        assert sum(one["count"] for one in found.values()) <= 5
