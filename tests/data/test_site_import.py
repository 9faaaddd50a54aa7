"""What an import writes, and that a site can be opened from it."""

import csv
import hashlib
import json
import random
import stat
from collections import Counter
from pathlib import Path

import pytest
import yaml

from fedretina import storage
from fedretina.data import site_import
from fedretina.data.manifest import read_manifest
from fedretina.data.readers.survey import ImportSettings
from fedretina.data.site_data import load_site_data
from fedretina.data.site_import import import_set
from fedretina.errors import DataError, SettingsError, StateError
from fedretina.settings.images import FundusSettings
from fedretina.settings.scheme import preset
from fedretina.settings.site import SiteDataSettings, read_site_file
from power_cut import Disk
from public_sets import aptos, class_folders, eyepacs, picture

NATIVE = ("aptos2019", "eyepacs", "idrid", "odir5k")


def opened(out, cache):
    """The site of an import, opened as a run opens it."""
    words = yaml.safe_load((out / "site.yaml").read_text())["data"]
    words = {**words, "manifest": out / words["manifest"], "images": out / words["images"]}
    settings = SiteDataSettings.model_validate({**words, "bad_files": "refuse"})
    return load_site_data("here", settings, FundusSettings(image_size=32), 1, cache)


@pytest.fixture
def eyes(tmp_path) -> Path:
    root = tmp_path / "set"
    eyepacs(root, [(k % 5, (k + 1) % 5) for k in range(20)], draw=picture)
    return root


def test_an_import_is_whole_and_a_site_opens_it(eyes, tmp_path):
    out = tmp_path / "a" / "site"
    record = import_set("eyepacs", eyes, out, ImportSettings(seed=4, fractions=(0.6, 0.2, 0.2)))
    assert sorted(path.name for path in out.iterdir()) == ["import.json", "left_out.csv", "manifest.csv", "site.yaml"]
    assert record == json.loads((out / "import.json").read_text())
    assert record["manifest_sha256"] == hashlib.sha256((out / "manifest.csv").read_bytes()).hexdigest()
    assert yaml.safe_load((out / "site.yaml").read_text())["data"]["columns"] == record["columns"] == ["eye"]
    assert (record["reader"], record["seed"], record["fractions"]) == ("eyepacs", 4, [0.6, 0.2, 0.2])
    assert record["patients"] == {"train": 12, "val": 4, "test": 4}
    assert not record["official_parts"]
    assert {split: sum(counts.values()) for split, counts in record["images"].items()} == {
        "train": 24,
        "val": 8,
        "test": 8,
    }
    data = opened(out, tmp_path / "cache")
    assert data.public_sets == ("eyepacs",)
    assert data.graded == {"train": 24, "val": 8, "test": 8}
    assert data.split("test").images.shape == (8, 3, 32, 32)
    assert data.bad_files == 0
    patients = [set(data.split(split).patients) for split in ("train", "val", "test")]
    assert not patients[0] & patients[1]
    assert not (patients[0] | patients[1]) & patients[2]


@pytest.mark.parametrize("seed", range(3))
def test_an_import_that_has_ended_outlives_a_power_cut(eyes, tmp_path, seed, monkeypatch):
    out = tmp_path / "site"
    disk = Disk(out, random.Random(seed))
    monkeypatch.setattr(storage, "sync", disk.sync)
    import_set("eyepacs", eyes, out, ImportSettings())
    written = {path.name: path.read_bytes() for path in out.iterdir()}
    disk.cut()
    assert {path.name: path.read_bytes() for path in out.iterdir()} == written


def test_the_same_import_gives_the_same_bytes_and_the_record_no_path(eyes, tmp_path):
    import_set("eyepacs", eyes, tmp_path / "a", ImportSettings())
    import_set("eyepacs", eyes, tmp_path / "b", ImportSettings())
    for name in ("manifest.csv", "import.json", "left_out.csv", "site.yaml"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    text = (tmp_path / "a" / "import.json").read_text()
    assert str(tmp_path) not in text
    assert "_left" not in text


def test_what_is_left_out_is_named_beside_the_manifest(tmp_path):
    aptos(tmp_path / "set", [0, 1, 2, 3, 4] * 4)
    for k in (3, 5):
        (tmp_path / "set" / "train_images" / f"i{k:03}.png").unlink()
    record = import_set("aptos2019", tmp_path / "set", tmp_path / "out", ImportSettings(bad_files="skip"))
    assert record["left_out"] == {"the image is missing": 2}
    with open(tmp_path / "out" / "left_out.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["name"] for row in rows] == ["train_images/i003.png", "train_images/i005.png"]


def test_a_scheme_of_one_s_own_reaches_the_site_file(tmp_path):
    class_folders(tmp_path / "set", {"well": 8, "ill": 8, "bad": 8}, draw=picture)
    settings = ImportSettings(grades=("well", "ill", "bad"), ungradable="bad")
    record = import_set("class_folders", tmp_path / "set", tmp_path / "out", settings)
    data = opened(tmp_path / "out", tmp_path / "cache")
    assert data.scheme.grades == ("well", "ill", "bad")
    assert data.scheme.ungradable_class == 2
    assert record["scheme"]["ungradable"] == "bad"


def test_an_import_is_not_written_over_unasked(eyes, tmp_path):
    out = tmp_path / "out"
    import_set("eyepacs", eyes, out, ImportSettings())
    before = (out / "manifest.csv").read_bytes()
    with pytest.raises(DataError, match=r"holds an import already.*--replace"):
        import_set("eyepacs", eyes, out, ImportSettings(seed=2))
    assert (out / "manifest.csv").read_bytes() == before
    import_set("eyepacs", eyes, out, ImportSettings(seed=2), replace=True)
    assert (out / "manifest.csv").read_bytes() != before


def homes(out):
    """The split of each patient of an import."""
    return {record.patient: record.split for record in read_manifest(out / "manifest.csv", None).records}


@pytest.mark.parametrize("hashed", [False, True])
def test_when_patients_go_and_come_nobody_else_changes_split(eyes, tmp_path, hashed):
    out, settings = tmp_path / "out", ImportSettings(hash_patients=hashed)
    import_set("eyepacs", eyes, out, settings)
    before = homes(out)
    labels = (eyes / "trainLabels.csv").read_text().splitlines()
    (eyes / "trainLabels.csv").write_text("\n".join(row for row in labels if not row.startswith("3_")) + "\n")
    record = import_set("eyepacs", eyes, out, settings, replace=True)
    after = homes(out)
    assert (len(before), len(after), record["kept"]["patients"]) == (20, 19, 19)
    assert after.items() < before.items()
    eyepacs(eyes, [(k % 5, (k + 1) % 5) for k in range(30)], draw=picture)
    record = import_set("eyepacs", eyes, out, settings, replace=True)
    assert after.items() < homes(out).items()
    assert (sum(record["patients"].values()), record["kept"]["patients"]) == (30, 19)
    again = import_set("eyepacs", eyes, out, ImportSettings(hash_patients=hashed, seed=2), replace=True)
    assert again["kept"]["patients"] == 0  # another seed asks for other splits
    assert not after.items() < homes(out).items()


@pytest.mark.parametrize("hashed", [False, True])
def test_a_patient_who_is_spelled_in_a_new_way_as_well_keeps_the_split(tmp_path, hashed):
    root, out = tmp_path / "set", tmp_path / "out"
    settings = ImportSettings(hash_patients=hashed, patient_pattern=r"/(?P<patient>\w+)-")
    for k in range(30):
        picture(root / str(k % 5) / f"ab{k}-1.png", k)
    import_set("class_folders", root, out, settings)
    before = homes(out)
    for k in range(30):
        picture(root / str(k % 5) / f"AB{k}-2.png", 100 + k)  # sorts before the spelling that the manifest has
    record = import_set("class_folders", root, out, settings, replace=True)
    after = homes(out)
    assert record["kept"]["patients"] == len(after) == 30
    assert "30 names of patients differ from another" in " ".join(record["warnings"])
    assert {name.casefold(): split for name, split in after.items()} == before
    assert not hashed or after == before


def test_other_shares_or_no_official_parts_deal_all_out_anew(tmp_path):
    for part in ("train", "val", "test"):
        class_folders(tmp_path / "set" / part, dict.fromkeys("01234", 6), draw=picture)
    out = tmp_path / "out"
    import_set("class_folders", tmp_path / "set", out, ImportSettings(copies="keep"))
    assert Counter(homes(out).values()) == {"train": 30, "val": 30, "test": 30}
    import_set("class_folders", tmp_path / "set", out, ImportSettings(copies="keep", official=False), replace=True)
    assert Counter(homes(out).values())["train"] == 63
    import_set("class_folders", tmp_path / "set", out, ImportSettings(copies="keep", official=False), replace=True)
    shares = ImportSettings(copies="keep", official=False, fractions=(0.4, 0.3, 0.3))
    import_set("class_folders", tmp_path / "set", out, shares, replace=True)
    assert Counter(homes(out).values())["train"] == 36


def test_a_manifest_that_cannot_be_read_is_not_dealt_out_anew_unasked(eyes, tmp_path):
    import_set("eyepacs", eyes, tmp_path / "out", ImportSettings())
    path = tmp_path / "out" / "manifest.csv"
    path.write_text(path.read_text().replace("split", "part", 1))
    with pytest.raises(DataError, match="Each patient of it is to keep its split"):
        import_set("eyepacs", eyes, tmp_path / "out", ImportSettings(), replace=True)
    path.unlink()
    import_set("eyepacs", eyes, tmp_path / "out", ImportSettings(), replace=True)


OWN = """\
# what the hospital's own staff wrote
approval: required
state_root: /srv/fedretina/runs
trainer: child
policy:
  kinds: [encoder]
  noise: {kind: gaussian, clip: 0.5, multiplier: 0.3, delta: 1.0e-6, max_epsilon: 500}
"""


def test_an_import_that_is_written_over_keeps_the_hospitals_own_settings(eyes, tmp_path):
    out = tmp_path / "out"
    import_set("eyepacs", eyes, out, ImportSettings())
    site_file = out / "site.yaml"
    site_file.write_text(site_file.read_text() + "  min_count: 20\n" + OWN)
    before = read_site_file(site_file, None)
    record = import_set("eyepacs", eyes, out, ImportSettings(), replace=True)
    assert read_site_file(site_file, None) == before
    assert before.policy.noise.max_epsilon == 500
    assert record["kept"]["settings"] == ["data.min_count", "approval", "state_root", "trainer", "policy"]
    # Of another set the words on the set itself do not stay.
    class_folders(tmp_path / "other", dict.fromkeys("01234", 4), draw=picture)
    import_set("class_folders", tmp_path / "other", out, ImportSettings(), replace=True)
    after = read_site_file(site_file, None)
    assert (after.policy, after.approval, after.data.min_count) == (before.policy, "required", 20)
    assert (after.data.public_set, after.data.columns) == (None, ())


def graded_by_hand(out: Path, **words: object) -> dict[str, object]:
    """Write into the scheme of an import what a hospital says of its grades; returns the scheme as it then stands."""
    site_file = out / "site.yaml"
    raw = yaml.safe_load(site_file.read_text())
    raw["data"]["scheme"] |= words
    site_file.write_text(yaml.safe_dump(raw, sort_keys=False))
    return raw["data"]["scheme"]


EYES = ("well", "ill", "bad")


def test_what_a_hospital_says_of_its_grades_stays(tmp_path):
    class_folders(tmp_path / "set", dict.fromkeys(EYES, 8), draw=picture)
    out, settings = tmp_path / "out", ImportSettings(grades=EYES)
    import_set("class_folders", tmp_path / "set", out, settings)
    first = import_set("class_folders", tmp_path / "set", out, settings, replace=True)
    assert first["kept"]["settings"] == []
    told = {"referable": ["ill"], "vision_threatening": ["ill"], "covers": {"ill": ["amd"]}, "ungradable": "bad"}
    by_hand = graded_by_hand(out, **told)
    again = import_set("class_folders", tmp_path / "set", out, settings, replace=True)
    assert yaml.safe_load((out / "site.yaml").read_text())["data"]["scheme"] == by_hand == again["scheme"]
    assert again["kept"]["settings"] == ["data.scheme"]
    assert opened(out, tmp_path / "cache").scheme.referable == ("ill",)
    same = ImportSettings(grades=EYES, ungradable="bad")
    assert import_set("class_folders", tmp_path / "set", out, same, replace=True)["scheme"] == by_hand


def test_a_preset_that_a_hospital_chose_for_the_same_grades_stays(tmp_path):
    class_folders(tmp_path / "set", {"No_DR": 8, "Mild": 8}, draw=picture)
    out, site_file = tmp_path / "out", tmp_path / "out" / "site.yaml"
    import_set("class_folders", tmp_path / "set", out, ImportSettings())
    graded_by_hand(out, referable=["severe"])
    class_folders(tmp_path / "set", {"Severe": 8}, draw=lambda path, number: picture(path, number + 50))
    # A name of a grade that comes up for the first time is added; what the hospital says stands.
    import_set("class_folders", tmp_path / "set", out, ImportSettings(), replace=True)
    scheme = opened(out, tmp_path / "cache").scheme
    assert (scheme.referable, scheme.labels["No_DR"], scheme.labels["Severe"]) == (("severe",), "no_dr", "severe")
    raw = yaml.safe_load(site_file.read_text())
    raw["data"]["scheme"] = "icdr5"
    site_file.write_text(yaml.safe_dump(raw))
    settings = ImportSettings(grades=preset("icdr5").grades)
    class_folders(tmp_path / "names", dict.fromkeys(settings.grades, 4), draw=picture)
    record = import_set("class_folders", tmp_path / "names", out, settings, replace=True)
    assert record["scheme"] == yaml.safe_load(site_file.read_text())["data"]["scheme"] == "icdr5"
    assert record["kept"]["settings"] == ["data.scheme"]


@pytest.mark.parametrize(
    ("folders", "settings", "words"),
    [
        (("well", "ill"), {"grades": ("well", "ill")}, r"'well', 'ill', 'bad'.*has 'well', 'ill':"),
        (EYES, {"grades": EYES, "ungradable": "well"}, r"'bad' stands for.*says 'well'"),
        (("unlabelled",), {"unlabelled": "train"}, r"'well', 'ill', 'bad'.*has none:"),
    ],
)
def test_other_grades_than_the_site_files_stop_the_import(tmp_path, folders, settings, words):
    class_folders(tmp_path / "set", dict.fromkeys(EYES, 8), draw=picture)
    out = tmp_path / "out"
    import_set("class_folders", tmp_path / "set", out, ImportSettings(grades=EYES, ungradable="bad"))
    graded_by_hand(out, referable=["ill"])
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    class_folders(tmp_path / "other", dict.fromkeys(folders, 8), draw=picture)
    with pytest.raises(DataError, match=words):
        import_set("class_folders", tmp_path / "other", out, ImportSettings(**settings), replace=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    raw = yaml.safe_load((out / "site.yaml").read_text())
    del raw["data"]["scheme"]  # as the message says
    (out / "site.yaml").write_text(yaml.safe_dump(raw))
    record = import_set("class_folders", tmp_path / "other", out, ImportSettings(**settings), replace=True)
    assert record["kept"]["settings"] == []


def test_a_scheme_of_the_site_file_that_cannot_be_used_stops_the_import(tmp_path):
    class_folders(tmp_path / "set", dict.fromkeys(EYES, 8), draw=picture)
    import_set("class_folders", tmp_path / "set", tmp_path / "out", ImportSettings(grades=EYES))
    graded_by_hand(tmp_path / "out", referable=["severe"])
    with pytest.raises(DataError, match=r"scheme.*referable is \['severe'\]"):
        import_set("class_folders", tmp_path / "set", tmp_path / "out", ImportSettings(grades=EYES), replace=True)


def test_a_site_file_that_cannot_be_read_is_not_written_over(eyes, tmp_path):
    import_set("eyepacs", eyes, tmp_path / "out", ImportSettings())
    site_file = tmp_path / "out" / "site.yaml"
    site_file.write_text(site_file.read_text() + "policy: {kinds: [encoder]\n")
    text = site_file.read_text()
    with pytest.raises(DataError, match="keeps the hospital's own settings: mend it"):
        import_set("eyepacs", eyes, tmp_path / "out", ImportSettings(), replace=True)
    assert site_file.read_text() == text


def test_an_import_that_fails_leaves_the_one_before_it_as_it_was(eyes, tmp_path):
    import_set("eyepacs", eyes, tmp_path / "out", ImportSettings())
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    (eyes / "train" / "1_left.jpeg").unlink()
    with pytest.raises(DataError, match="1 of 40"):
        import_set("eyepacs", eyes, tmp_path / "out", ImportSettings(), replace=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_first_import_that_fails_does_not_stand_in_the_way_of_the_next(eyes, tmp_path, monkeypatch):
    def full(path, record):
        raise StateError("the disk is full")

    with monkeypatch.context() as failing:
        failing.setattr(site_import, "write_json", full)
        with pytest.raises(StateError, match="disk is full"):
            import_set("eyepacs", eyes, tmp_path / "out", ImportSettings())
    assert not list((tmp_path / "out").iterdir())
    told = []
    import_set("eyepacs", eyes, tmp_path / "out", ImportSettings(), tell=lambda *words: told.append(words))
    assert [words[:2] for words in told] == [("files compared", done) for done in range(1, told[0][2] + 1)]


def test_an_import_into_a_folder_of_the_set_is_read_past(tmp_path):
    class_folders(tmp_path, dict.fromkeys("01234", 4), draw=picture)
    first = import_set("class_folders", tmp_path, tmp_path / "site", ImportSettings())
    picture(tmp_path / "site" / "images" / "a.png", 99)
    again = import_set("class_folders", tmp_path, tmp_path / "site", ImportSettings(), replace=True)
    assert again == {**first, "kept": {"patients": 20, "settings": []}}


@pytest.mark.parametrize(
    ("name", "where", "error", "words"),
    [
        ("aptos", "set", SettingsError, "no reader 'aptos'"),
        ("eyepacs", "nowhere", DataError, "is no folder"),
        ("aptos2019", "set", DataError, "unpack the set again"),
    ],
)
def test_a_set_that_cannot_be_found(eyes, tmp_path, name, where, error, words):
    with pytest.raises(error, match=words):
        import_set(name, tmp_path / where, tmp_path / "out", ImportSettings())
    assert not (tmp_path / "out" / "manifest.csv").exists()


def test_a_folder_that_cannot_be_made(eyes, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        import_set("eyepacs", eyes, tmp_path / "file" / "out", ImportSettings())


def test_the_salt_may_lie_elsewhere_and_serve_two_imports(eyes, tmp_path):
    settings = ImportSettings(hash_patients=True, salt=tmp_path / "salt")
    records = [import_set("eyepacs", eyes, tmp_path / name, settings) for name in ("a", "b")]
    assert records[0] == records[1]
    assert records[0]["patients_hashed"]
    assert not (tmp_path / "a" / "patient_salt").exists()
    assert stat.S_IMODE((tmp_path / "salt").stat().st_mode) == 0o600


@pytest.mark.real
@pytest.mark.parametrize("name", NATIVE)
def test_native_layouts(name, shared, tmp_path):
    root = shared / "native" / name
    if not root.is_dir():
        pytest.skip(f"the native layout of {name} is not here")
    # The copy here holds few of IDRiD's images but its whole label list.
    settings = ImportSettings(bad_files="skip" if name == "idrid" else "refuse")
    record = import_set(name, root, tmp_path / "out", settings)
    expected = {"aptos2019": 12, "eyepacs": 12, "idrid": 18, "odir5k": 11}
    manifest = read_manifest(tmp_path / "out" / "manifest.csv", opened(tmp_path / "out", tmp_path / "cache").scheme)
    assert len(manifest.records) == expected[name]
    left_out = {"idrid": 498, "odir5k": 1}
    assert sum(record["left_out"].values()) == left_out.get(name, 0)
    assert opened(tmp_path / "out", tmp_path / "cache").bad_files == 0


@pytest.mark.real
def test_the_whole_idrid_is_not_here(shared, tmp_path):
    if not (shared / "native" / "idrid").is_dir():
        pytest.skip("the native layout of idrid is not here")
    with pytest.raises(DataError, match="498 of 516 labelled images are missing"):
        import_set("idrid", shared / "native" / "idrid", tmp_path / "out", ImportSettings())
