"""What becomes of the images that a reader found: left out, kept in official parts, split by patient, hashed."""

import pytest

from fedretina.data.import_plan import plan_import
from fedretina.data.readers import readers
from fedretina.data.readers.survey import ImportSettings
from fedretina.errors import DataError, SettingsError
from public_sets import aptos, class_folders, ddr, eyepacs, idrid, picture


def plan(name, root, **words):
    (root / "out").mkdir(exist_ok=True)
    return plan_import(name, root, root / "out", ImportSettings.of(**words))


def reasons(found):
    return {row.name: row.reason for row in found.left_out}


def test_missing_images_are_named_up_to_five(tmp_path):
    aptos(tmp_path, [0, 1] * 10)
    for k in range(7):
        (tmp_path / "train_images" / f"i{k:03}.png").unlink()
    with pytest.raises(DataError, match="7 of 20 labelled images") as error:
        plan("aptos2019", tmp_path)
    assert "i004.png and 2 more. Unpack the set again, or leave them out (--bad-files skip)." in str(error.value)
    assert "i005" not in str(error.value)
    found = plan("aptos2019", tmp_path, bad_files="skip")
    assert len(found.rows) == 13
    assert set(reasons(found).values()) == {"the image is missing"}


def test_nothing_is_left(tmp_path):
    aptos(tmp_path, [0, 1])
    for path in (tmp_path / "train_images").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="is left to import: 2: the image is missing"):
        plan("aptos2019", tmp_path, bad_files="skip")


def test_copies_are_left_out_or_kept(tmp_path):
    aptos(tmp_path, [0, 1] * 5)
    for k in range(10):
        picture(tmp_path / "train_images" / f"i{k:03}.png", k // 2 * 2 if k < 4 else k)
    assert len(plan("aptos2019", tmp_path).rows) == 6  # 0 and 1, 2 and 3 are copies with different grades
    assert len(plan("aptos2019", tmp_path, copies="keep").rows) == 10


def test_spellings_of_a_patient_become_one_and_are_counted(tmp_path):
    for grade in ("healthy", "no_dr", "mild", "moderate"):
        for name in ("Ann_1", "ann_2", "Bea_1", "cid_1", "dan_1"):
            picture(tmp_path / grade / f"{name}{grade}.png", len(grade) * 100 + ord(name[0]))
    found = plan(
        "class_folders",
        tmp_path,
        patient_pattern="/(?P<patient>[A-Za-z]+)_[12]",
        grades=("healthy", "no_dr", "mild", "moderate"),
    )
    assert {row.patient for row in found.rows} == {"Ann", "Bea", "cid", "dan"}
    assert "1 names of patients differ from another in capital letters or blanks alone" in " ".join(found.warnings)
    assert not any(name in " ".join(found.warnings) for name in ("Ann", "ann"))


def test_a_patient_in_two_official_parts_stays_in_the_later(tmp_path):
    eyepacs(tmp_path, [(0, 0), (1, 1), (2, 2)])
    eyepacs(tmp_path, [(3, 3), (4, 4)], "test", "retinopathy_solution.csv", first=3)
    found = plan("eyepacs", tmp_path)
    assert reasons(found) == dict.fromkeys(
        ["train/3_left.jpeg", "train/3_right.jpeg"], "its patient is in the official test part too"
    )
    assert {row.file for row in found.rows if row.patient == "3"} == {"test/3_left.jpeg", "test/3_right.jpeg"}
    pooled = plan("eyepacs", tmp_path, official=False)
    assert len({row.split for row in pooled.rows if row.patient == "3"}) == 1
    assert len(pooled.rows) == 10


def test_official_val_and_test_stand_and_pooling_splits_anew(tmp_path):
    ddr(tmp_path, train=[0, 1] * 10, valid=[0, 1], test=[0, 1])
    counts = [sum(row.split == split for row in plan("ddr", tmp_path).rows) for split in ("train", "val", "test")]
    assert counts == [20, 2, 2]
    pooled = plan("ddr", tmp_path, official=False, fractions=(0.5, 0.25, 0.25)).rows
    assert [sum(row.split == split for row in pooled) for split in ("train", "val", "test")] == [12, 6, 6]


def test_val_is_carved_from_train_whole_patients_at_a_time(tmp_path):
    folders = {f"{part}/{grade}": count for grade in "01234" for part, count in (("train", 8), ("test", 2))}
    class_folders(tmp_path, folders)
    pattern = r"^(?P<patient>\w+/\d/p\w+)_"
    rows = plan("class_folders", tmp_path, patient_pattern=pattern, fractions=(0.6, 0.2, 0.2)).rows
    sizes = {split: sum(row.split == split for row in rows) for split in ("train", "val", "test")}
    assert sizes == {"train": 30, "val": 10, "test": 10}
    homes = {}
    for row in rows:
        assert homes.setdefault(row.patient, row.split) == row.split
        assert (row.split == "test") == row.file.startswith("test/")


@pytest.mark.parametrize("part", ["train", "test"])
def test_official_parts_that_lack_one(tmp_path, part):
    class_folders(tmp_path, {f"{part}/{grade}": 4 for grade in "01234"} | {f"val/{grade}": 4 for grade in "01234"})
    with pytest.raises(DataError, match=r"a site needs train and test at least.*--no-official"):
        plan("class_folders", tmp_path)
    assert {row.split for row in plan("class_folders", tmp_path, official=False).rows} == {"train", "val", "test"}


def test_order_of_the_list_does_not_matter(tmp_path):
    eyepacs(tmp_path, [(k % 5, k % 3) for k in range(30)])
    before = sorted(plan("eyepacs", tmp_path).rows)
    head, *lines = (tmp_path / "trainLabels.csv").read_text().splitlines()
    (tmp_path / "trainLabels.csv").write_text("\n".join([head, *reversed(lines)]))
    assert sorted(plan("eyepacs", tmp_path).rows) == before


def test_hashed_patients_keep_together_and_keep_their_split(tmp_path):
    eyepacs(tmp_path, [(0, 1), (2, 3), (4, 0)])
    plain, hashed = plan("eyepacs", tmp_path), plan("eyepacs", tmp_path, hash_patients=True)
    assert [row.split for row in hashed.rows] == [row.split for row in plain.rows]
    keys = dict(zip([row.patient for row in plain.rows], [row.patient for row in hashed.rows], strict=True))
    assert len(set(keys.values())) == 3
    assert all(keys[row.patient] == other.patient for row, other in zip(plain.rows, hashed.rows, strict=True))
    assert all(len(key) == 32 for key in keys.values())
    assert any("names of the files still tell them" in sentence for sentence in hashed.warnings)
    assert plan("eyepacs", tmp_path, hash_patients=True).rows == hashed.rows
    (tmp_path / "out" / "patient_salt").unlink()
    assert plan("eyepacs", tmp_path, hash_patients=True).rows != hashed.rows


def test_grades_that_a_split_lacks_are_named(tmp_path):
    idrid(tmp_path, [0, 0, 1, 1, 2, 2], [0, 4])
    warnings = plan("idrid", tmp_path).warnings
    assert "train has no image of severe, proliferative." in warnings
    assert "test has no image of mild, moderate, severe." in warnings


def test_a_scheme_that_lacks_the_set_s_labels(tmp_path):
    ddr(tmp_path, train=[0, 1, 5], valid=[0, 1], test=[0, 1])
    with pytest.raises(DataError, match="label '5' is not in the grading scheme"):
        plan("ddr", tmp_path, scheme="icdr5")


def test_too_few_patients(tmp_path):
    eyepacs(tmp_path, [(0, 1), (2, 3)])
    with pytest.raises(DataError, match="2 patients for 3 splits"):
        plan("eyepacs", tmp_path)


def test_a_salt_that_hashes_nobody_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="the import of eyepacs hashes none: set hash_patients, or leave it out"):
        plan("eyepacs", tmp_path, salt=tmp_path / "salt")


@pytest.mark.parametrize("name", [name for name in readers() if name not in ("class_folders", "own_table", "dicom")])
def test_an_option_of_other_readers(tmp_path, name):
    with pytest.raises(SettingsError, match=r"patient_pattern means nothing to the reader .* it is for"):
        plan(name, tmp_path, patient_pattern="(?P<patient>a)")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"fractions": (0.7, 0.3, 0.0)}, "three shares above 0 that sum to 1"),
        ({"fractions": (0.7, 0.2, 0.2)}, "three shares above 0 that sum to 1"),
        ({"fractions": (float("nan"), 0.5, 0.5)}, "three shares above 0 that sum to 1"),
        ({"seed": -1}, "seed"),
        ({"scheme": "icdr7"}, "scheme"),
        ({"colour": 1}, "colour"),
        ({"ungradable": "bad"}, "must be one of the grades"),
    ],
)
def test_settings_that_cannot_be_used(tmp_path, words, sentence):
    with pytest.raises(SettingsError, match=sentence):
        plan("class_folders", tmp_path, **words)
