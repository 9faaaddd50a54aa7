import json

import pytest
from PIL import Image as Picture

from fedretina.data.check.report import VERDICTS, check_site
from fedretina.data.check.rows import open_source
from fedretina.data.readers.survey import ImportSettings
from fedretina.data.site_data import load_site_data
from fedretina.errors import DataError
from fedretina.report.data_check_page import count_rows
from fedretina.settings.images import FundusSettings
from fedretina.settings.site import read_data_settings
from little_eyes import GRADES, eye, save, write_rows, write_site


def checked(path, quick=False, **words):
    return check_site(open_source(path, ImportSettings()), words.get("image_size", 128), quick, 1)


def codes(report):
    return {(one.severity, one.code): one.where for one in report.findings}


def load(folder, cache):
    settings = read_data_settings(folder / "site.yaml")
    return load_site_data("north", settings, FundusSettings(image_size=32), 0, cache)


def test_a_clean_site(clean_site):
    report = checked(clean_site)
    assert report.findings == ()
    assert (report.exit_code, report.verdict) == (0, VERDICTS["note"])
    assert report.counts == {"train": [2] * 5, "val": [1] * 5, "test": [5] * 5}
    assert report.patients == {"train": 9, "val": 5, "test": 25}
    assert report.sizes == (((160, 160), 40),)
    assert (report.listed, len(report.images), report.synthetic) == (40, 40, False)


def test_the_record_is_the_same_each_time_and_plain(clean_site):
    first, again = (json.dumps(checked(clean_site).record(), sort_keys=True) for _ in range(2))
    assert first == again
    assert str(clean_site.parent) not in first


def test_quick_opens_nothing_and_says_so(clean_site, monkeypatch):
    monkeypatch.setattr("fedretina.data.decode.decode_image", None)
    report = checked(clean_site, quick=True)
    assert set(codes(report)) == {("note", "pixels_not_checked")}
    assert (report.exit_code, report.sizes, len(report.images)) == (0, (), 40)


def test_progress_counts_each_image(clean_site):
    ticks = []
    check_site(open_source(clean_site, ImportSettings()), 128, workers=2, done=lambda: ticks.append(1))
    assert len(ticks) == 40


def faulty(folder, **settings):
    """A site with a fault of each kind that lies in files."""
    rows = write_site(folder)
    images = folder / "images"
    save(images / "TEST-0-0.PNG", eye(9))
    (images / "test-0-0.png").unlink()
    data = (images / "train-0-0.png").read_bytes()
    (images / "train-0-0.png").write_bytes(data[: len(data) // 2])
    (images / "train-1-0.png").write_bytes(b"")
    save(images / "extra" / "more.png", eye(77))
    return write_rows(folder, rows, **settings)


def test_bad_files_are_left_out_and_told(tmp_path):
    report = checked(faulty(tmp_path))
    found = codes(report)
    # 3 of 40 are more than 1 in 20.
    assert found["error", "file_missing"] == ("row 17: 'test-0-0.png', but there is 'TEST-0-0.PNG'",)
    assert [words.split()[0] for words in found["error", "file_unreadable"]] == ["train-0-0.png", "train-1-0.png"]
    assert str(tmp_path) not in json.dumps(report.record())
    assert found["note", "file_not_listed"] == ("TEST-0-0.PNG", "extra/more.png")
    assert found["warning", "grade_rare_in_test"] == ("4 'no_dr' in test",)
    assert (report.listed, len(report.images), report.exit_code) == (40, 37, 2)
    assert report.counts["train"] == [1, 1, 2, 2, 2]
    assert load(tmp_path, tmp_path / "cache").bad_files == 3


@pytest.mark.parametrize(("policy", "severity", "code"), [("skip", "warning", 1), ("refuse", "error", 2)])
def test_one_bad_file_is_as_grave_as_the_sites_policy_says(tmp_path, policy, severity, code):
    rows = write_site(tmp_path)
    (tmp_path / "images" / rows[0][0]).unlink()
    report = checked(write_rows(tmp_path, rows, bad_files=policy))
    assert codes(report) == {(severity, "file_missing"): (f"row 2: {rows[0][0]!r}",), **unknown(report)}
    assert report.exit_code == code


def unknown(report):
    """Without the first image no patient has two, which is told as well."""
    return {key: where for key, where in codes(report).items() if key[1] == "patients_unknown"}


def test_files_of_several_pictures_are_left_out_and_told_apart_from_damaged_ones(tmp_path):
    rows = write_site(tmp_path)
    images = tmp_path / "images"
    for row in rows[:2]:
        row[0] = f"{row[0]}.tif"
    pages = [Picture.fromarray(eye(at)) for at in range(2)]
    pages[0].save(images / rows[0][0], save_all=True, append_images=pages[1:])
    pages[1].save(images / rows[1][0], compression="tiff_lzw")
    data = (images / rows[1][0]).read_bytes()
    (images / rows[1][0]).write_bytes(data[:3000] + bytes(3000) + data[6000:])
    write_rows(tmp_path, rows)
    found = codes(checked(tmp_path))
    assert found["warning", "several_pages"] == (rows[0][0],)
    assert [words.split()[0] for words in found["warning", "file_unreadable"]] == [rows[1][0]]
    assert load(tmp_path, tmp_path / "cache").bad_files == 2
    write_rows(tmp_path, rows, bad_files="refuse")
    assert ("error", "several_pages") in codes(checked(tmp_path))


def test_a_back_slash_is_told(tmp_path):
    rows = write_site(tmp_path)
    rows[0][0] = f"sub\\{rows[0][0]}"
    found = codes(checked(write_rows(tmp_path, rows)))
    assert found["warning", "file_missing"][0].endswith("write '/' in place of '\\'")


def test_one_in_twenty_bad_files_is_the_limit(tmp_path):
    rows = write_site(tmp_path)
    for row in rows[2:4]:
        (tmp_path / "images" / row[0]).unlink()
    assert ("warning", "file_missing") in codes(checked(write_rows(tmp_path, rows)))
    (tmp_path / "images" / rows[4][0]).unlink()
    assert ("error", "file_missing") in codes(checked(tmp_path))


def test_what_the_check_calls_clean_training_takes(clean_site, tmp_path):
    assert sum(load(clean_site, tmp_path).graded.values()) == 40


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda rows: [row for row in rows if row[3] != "val"], "split_empty"),
        (lambda rows: [row for row in rows if row[3] != "train" or row[1] == "2"], "one_grade_in_train"),
        (lambda rows: [[*rows[0][:3], "Train"], *rows[1:]], "split_unknown"),
        (lambda rows: [[*rows[0][:1], "9", *rows[0][2:]], *rows[1:]], "label_outside_scheme"),
        (lambda rows: [[*rows[0][:2], rows[-1][2], "train"], *rows[1:]], "patient_in_two_splits"),
    ],
)
def test_what_training_refuses_the_check_calls_an_error(clean_site, tmp_path, change, code):
    rows = write_site(tmp_path)
    write_rows(tmp_path, change(rows))
    report = checked(tmp_path)
    assert ("error", code) in codes(report)
    with pytest.raises(DataError):
        load(tmp_path, tmp_path / "cache")


def test_a_split_whose_files_are_all_damaged_is_empty(tmp_path):
    rows = write_site(tmp_path)
    for row in rows:
        if row[3] == "val":
            (tmp_path / "images" / row[0]).write_bytes(b"\xff\xd8")
    assert codes(checked(tmp_path))["error", "split_empty"] == ("val",)


def test_no_file_is_there(tmp_path):
    rows = write_site(tmp_path)
    (tmp_path / "images").rename(tmp_path / "moved")
    (tmp_path / "images").mkdir()
    found = codes(checked(tmp_path))
    assert len(found["error", "file_missing"]) == len(rows)
    assert found["error", "split_empty"] == ("train", "val", "test")


def test_a_name_that_no_disk_can_hold_is_a_missing_file(clean_site, tmp_path):
    rows = [line.split(",") for line in (clean_site / "manifest.csv").read_text().splitlines()]
    rows[1][0] = "a" * 300 + ".png"
    (tmp_path / "manifest.csv").write_text("\n".join(map(",".join, rows)))
    report = check_site(
        open_source(tmp_path / "manifest.csv", ImportSettings(scheme="icdr5"), clean_site / "images"), 128, quick=True
    )
    assert [words.split(":")[0] for where in [codes(report)["warning", "file_missing"]] for words in where] == ["row 2"]


def test_duplicates_and_odd_images_reach_the_report(tmp_path):
    rows = write_site(tmp_path)
    save(tmp_path / "images" / rows[0][0], eye(4242))
    save(tmp_path / "images" / rows[-1][0], eye(4242))
    save(tmp_path / "images" / rows[5][0], eye(5)[..., ::-1])
    found = codes(checked(tmp_path))
    assert set(found) == {
        ("error", "duplicate_with_other_label"),
        ("error", "duplicate_across_splits"),
        ("warning", "channels_swapped"),
    }


def test_a_limit_is_told(tmp_path):
    rows = write_site(tmp_path)
    assert ("note", "limited") in codes(checked(write_rows(tmp_path, rows, limit={"train": 3})))


def test_a_promise_that_no_referable_grade_can_keep_is_an_error(tmp_path):
    rows = write_site(tmp_path, (1, 1, 1))
    own = {"scheme": {"grades": list(GRADES)}}
    assert ("note", "referable_not_set") in codes(checked(write_rows(tmp_path, rows, **own), quick=True))
    report = checked(write_rows(tmp_path, rows, **own, promise={"missed": 0.05}), quick=True)
    assert ("error", "referable_not_set") in codes(report)
    assert report.exit_code == 2


def test_a_phantom_site_is_told(tmp_path):
    (tmp_path / "site.yaml").write_text("data: {}\n")
    report = checked(tmp_path)
    assert set(codes(report)) == {("warning", "phantom_site")}
    assert report.synthetic


def test_phantoms_on_disk_are_synthetic_and_must_not_mix(tmp_path):
    from fedretina.data.phantoms.canvas import write_png

    rows = write_site(tmp_path)
    write_png(tmp_path / "images" / rows[0][0], eye(0))
    report = checked(tmp_path)
    assert codes(report) == {("error", "phantom_among_images"): (rows[0][0],)}
    assert not report.synthetic
    for at, row in enumerate(rows):
        write_png(tmp_path / "images" / row[0], eye(at))
    report = checked(tmp_path)
    assert report.findings == ()
    assert report.synthetic


def test_a_site_that_only_pre_trains(tmp_path):
    rows = [(file, "", patient, "train") for file, _, patient, _ in write_site(tmp_path / "north", (1, 1, 1))]
    write_rows(tmp_path / "north", rows, scheme=None)
    report = check_site(open_source(tmp_path / "north", ImportSettings()), 64)
    assert (report.grades, report.rows, report.unlabelled) == ((), ("no label",), len(rows))
    assert report.exit_code == 0
    assert "label_none" in {finding.code for finding in report.findings}
    assert report.record()["images"]["unlabelled"] == len(rows)
    assert count_rows(report)[0] == ["no label", str(len(rows)), "0", "0", str(len(rows))]
