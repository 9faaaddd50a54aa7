"""`check_reader` over the project's readers, and over readers that each break one demand."""

import dataclasses
import itertools
from importlib.metadata import EntryPoint

import pytest

import public_sets as sets
from fedretina.data import readers as package
from fedretina.data.readers import reader, readers
from fedretina.data.readers.survey import ImportSettings, LeftOut, Photograph, Survey
from fedretina.errors import DataError, SettingsError
from fedretina.testing.reader import check_reader


@pytest.fixture
def root(tmp_path):
    sets.aptos(tmp_path / "set", [0, 1, 2, 3, 4] * 4, draw=sets.picture)
    return tmp_path / "set"


@pytest.mark.parametrize("hashed", [False, True])
def test_a_reader_of_the_project_holds(root, hashed):
    check_reader(reader("aptos2019"), root, ImportSettings(hash_patients=hashed))


def test_a_reader_of_both_eyes_holds(tmp_path):
    sets.eyepacs(tmp_path, [(k % 5, k % 5) for k in range(20)], draw=sets.picture)
    check_reader(reader("eyepacs"), tmp_path)


COUNT = itertools.count()
FINE = tuple(Photograph(f"train_images/i{k:03}.png", str(k % 5), f"i{k:03}") for k in range(20))


def told(**words):
    return lambda root, settings, out: (
        Survey(**({"photographs": FINE, "scheme": "icdr5"} | words)) if (root / "train.csv").exists() else refuse()
    )


def tells_a_path(root, settings, out):
    return told(warnings=(f"in {root}.",))(root, settings, out)


def changes_its_mind(root, settings, out):
    return told(warnings=(f"{next(COUNT)} times.",))(root, settings, out)


def breaks_down(root, settings, out):
    return told()(root, settings, out) if list(root.iterdir()) else 1 / 0


def refuse():
    raise DataError("there is no train.csv: unpack the set again.")


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"name": "Aptos 2019"}, "is not of a-z"),
        ({"patients": " "}, r"says nothing of \['patients'\]"),
        ({"modality": "x_ray"}, "there is no modality 'x_ray'"),
        ({"options": ("colour",)}, r"options \['colour'\] are no settings"),
        ({"survey_of": told(photographs=())}, "finds no image"),
        ({"survey_of": told(scheme=None)}, "gives no scheme"),
        ({"survey_of": told(photographs=(*FINE, Photograph("x.png", "0", "x")))}, "no file below its folder"),
        ({"survey_of": told(photographs=(FINE[0]._replace(patient=" "),))}, "has no patient"),
        ({"survey_of": told(photographs=(FINE[0]._replace(part="dev"),))}, "part of .* is 'dev'"),
        ({"survey_of": told(warnings=("i003 is doubtful.",))}, r"names \['i003'\]"),
        ({"survey_of": told(left_out=(LeftOut("a.png", "it is like i004"),))}, r"names \['i004'\]"),
        ({"survey_of": tells_a_path}, "names a path"),
        ({"survey_of": changes_its_mind}, "the second time"),
        ({"survey_of": lambda root, settings, out: Survey(FINE, "icdr5")}, "reads an empty folder"),
        ({"survey_of": breaks_down}, "ZeroDivisionError"),
    ],
)  # fmt: skip
def test_each_demand_is_looked_at(root, broken, says):
    with pytest.raises(AssertionError, match=says):
        check_reader(dataclasses.replace(reader("aptos2019"), **({"survey_of": told()} | broken)), root)


def test_labels_outside_the_scheme_and_files_outside_the_folder_are_refused(root):
    for photograph, says in (
        (FINE[0]._replace(label="9"), "not in the grading scheme"),
        (FINE[0]._replace(file="../i000.png"), "leave the image root"),
    ):
        with pytest.raises(DataError, match=says):
            check_reader(dataclasses.replace(reader("aptos2019"), survey_of=told(photographs=(photograph,))), root)


def test_readers_of_other_packages_are_found_by_an_entry_point(monkeypatch):
    def brings(value):
        found = [EntryPoint(name="theirs", value=value, group=package.GROUP)]
        monkeypatch.setattr(package, "entry_points", lambda group: found if group == package.GROUP else [])
        readers.cache_clear()

    monkeypatch.setattr(sets, "THEIRS", dataclasses.replace(reader("aptos2019"), name="theirs"), raising=False)
    monkeypatch.setattr(sets, "TAKEN", reader("ddr"), raising=False)
    try:
        brings("public_sets:THEIRS")
        assert reader("theirs").name == list(readers())[-1] == "theirs"
        for value, says in (
            ("public_sets:TAKEN", "brings a reader 'ddr', and there is one"),
            ("public_sets:NOTHING", "cannot be loaded .AttributeError"),
            ("public_sets:CORRECTED", "names a tuple, expected a PublicSet"),
        ):
            brings(value)
            with pytest.raises(SettingsError, match=says):
                readers()
    finally:
        readers.cache_clear()
