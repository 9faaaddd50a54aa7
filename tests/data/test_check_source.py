import pytest

from fedretina.data.check.rows import Row, open_source
from fedretina.data.readers.survey import ImportSettings
from fedretina.errors import DataError, SettingsError
from fedretina.settings.scheme import GradingScheme, preset
from little_eyes import GRADES, eye, save, write_rows, write_site

PLAIN = ImportSettings()


def test_a_site_file(tmp_path):
    rows = write_site(tmp_path / "north", (1, 1, 1))
    write_rows(tmp_path / "north", rows, bad_files="refuse", limit={"train": 2})
    source = open_source(tmp_path / "north" / "site.yaml", PLAIN)
    assert (source.name, source.scheme, source.images) == ("north", preset("icdr5"), tmp_path / "north" / "images")
    assert (source.bad_files, source.limited, source.phantom) == ("refuse", True, False)
    assert source.rows[0] == Row("row 2", *rows[0])
    assert open_source(tmp_path / "north", PLAIN) == source
    assert open_source(tmp_path / "north", PLAIN, site="south").name == "south"


def test_the_site_files_own_scheme_counts(tmp_path):
    write_site(tmp_path, (1, 1, 1))
    asked = ImportSettings.of(scheme="normal_3stages")
    assert open_source(tmp_path / "site.yaml", asked).scheme == preset("icdr5")


def test_a_site_file_without_a_scheme(tmp_path):
    rows = write_site(tmp_path, (1, 1, 1))
    write_rows(tmp_path, rows, scheme=None)
    with pytest.raises(DataError, match="scheme: icdr5"):
        open_source(tmp_path / "site.yaml", PLAIN)
    assert open_source(tmp_path / "site.yaml", ImportSettings.of(scheme="icdr5")).scheme == preset("icdr5")


def test_a_site_without_a_manifest_is_a_phantom(tmp_path):
    path = tmp_path / "site-2.yaml"
    path.write_text("data: {}\n")
    source = open_source(path, PLAIN)
    assert (source.name, source.phantom, source.rows) == ("site-2", True, ())


def test_a_manifest_and_its_images(tmp_path):
    rows = write_site(tmp_path / "north", (1, 1, 1))
    path = tmp_path / "north" / "manifest.csv"
    with pytest.raises(DataError, match="--scheme"):
        open_source(path, PLAIN)
    asked = ImportSettings.of(grades=GRADES, ungradable="proliferative")
    source = open_source(path, asked, images=tmp_path / "north" / "images")
    assert source.scheme == GradingScheme(grades=GRADES, ungradable="proliferative")
    assert (source.name, len(source.rows)) == ("north", len(rows))
    assert open_source(path, asked).images == tmp_path / "north"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"grades": ("a",)}, "cannot be used: a grading scheme needs at least two grades"),
        ({"grades": ("a", "b"), "ungradable": "c"}, "one of"),
    ],
)
def test_grades_that_make_no_scheme(tmp_path, words, says):
    write_site(tmp_path, (1, 1, 1))
    with pytest.raises(DataError, match=says):
        open_source(tmp_path / "manifest.csv", ImportSettings.of(**words))


def test_an_image_root_that_is_not_there(tmp_path):
    rows = write_site(tmp_path, (1, 1, 1))
    write_rows(tmp_path, rows, images="elsewhere")
    with pytest.raises(DataError, match="elsewhere is no folder"):
        open_source(tmp_path / "site.yaml", PLAIN)


@pytest.mark.parametrize(
    ("text", "says"), [("file,label\na,0\n", "header"), ("file,label,patient,split\n", "no rows"), ("", "header")]
)
def test_a_manifest_that_is_none(tmp_path, text, says):
    (tmp_path / "manifest.csv").write_text(text)
    with pytest.raises(DataError, match=says):
        open_source(tmp_path / "manifest.csv", ImportSettings.of(scheme="icdr5"))


def folders(root, *names):
    for at, name in enumerate(names):
        for number in range(3):
            save(root / name / f"{number}.jpg", eye(10 * at + number, 64))


def test_a_folder_a_class_is_split_as_an_import_would(tmp_path):
    from fedretina.data.site_import import import_set

    folders(tmp_path / "root", *GRADES)
    source = open_source(tmp_path / "root", PLAIN)
    assert (source.name, source.scheme.grades) == ("root", GRADES)
    import_set("class_folders", tmp_path / "root", tmp_path / "in", PLAIN)
    imported = open_source(tmp_path / "in", PLAIN)
    assert [row[1:] for row in source.rows] == [row[1:] for row in imported.rows]
    assert source.rows[0].place == source.rows[0].file


def test_a_folder_with_parts_keeps_them(tmp_path):
    folders(tmp_path, "train/0_no", "train/1_yes", "val/0_no", "test/1_yes")
    source = open_source(tmp_path, PLAIN)
    assert [row.split for row in source.rows] == ["test"] * 3 + ["train"] * 6 + ["val"] * 3
    assert source.scheme.grades == ("0_no", "1_yes")


def test_a_label_outside_the_users_scheme_stops_nothing(tmp_path):
    folders(tmp_path, "0", "1", "strange")
    source = open_source(tmp_path, ImportSettings.of(grades=("0", "1")))
    assert {row.label for row in source.rows} == {"0", "1", "strange"}
    assert {row.split for row in source.rows} == {"train", "val", "test"}


def test_patients_from_the_names_of_the_files(tmp_path):
    folders(tmp_path, "0_no", "1_yes")
    asked = ImportSettings.of(patient_pattern=r"/(?P<patient>\d)")
    assert {row.patient for row in open_source(tmp_path, asked).rows} == {"0", "1", "2"}
    with pytest.raises(SettingsError, match="pattern"):
        open_source(tmp_path, ImportSettings.of(patient_pattern="("))


def test_an_empty_folder(tmp_path):
    with pytest.raises(DataError, match="no folder of a class"):
        open_source(tmp_path, PLAIN)


@pytest.mark.parametrize(("scheme", "modality"), [("icdr5", "fundus"), ("oct4", "oct"), ("duke3", "oct")])
def test_the_grades_say_what_the_images_are(tmp_path, scheme, modality):
    write_rows(tmp_path, write_site(tmp_path, (1, 1, 1)), scheme=scheme)
    assert open_source(tmp_path / "site.yaml", PLAIN).modality == modality


def test_an_oct_phantom_draws_oct_grades(tmp_path):
    path = tmp_path / "site-2.yaml"
    path.write_text("data: {}\n")
    assert open_source(path, PLAIN, modality="oct").scheme == preset("oct4")


def test_a_site_without_labels_needs_no_scheme(tmp_path):
    rows = [[file, "", *others] for file, _, *others in write_site(tmp_path, (1, 1, 1))]
    write_rows(tmp_path, rows, scheme=None)
    for path in (tmp_path / "site.yaml", tmp_path / "manifest.csv"):
        source = open_source(path, PLAIN, images=tmp_path / "images")
        assert source.scheme is None
        assert source.modality == "fundus"


def test_a_folder_of_images_without_a_label_goes_to_train(tmp_path):
    folders(tmp_path, "0_no", "1_yes", "unlabelled")
    rows = open_source(tmp_path, PLAIN).rows
    assert [row[2:5] for row in rows if row.file.startswith("unlabelled")] == [
        ("", f"unlabelled/{at}.jpg", "train") for at in range(3)
    ]
