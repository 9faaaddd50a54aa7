"""A hospital's own images within a run: lists that change, files that cannot be read, splits of few patients."""

import json
import stat
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from fedretina.aggregation.coordinator import Coordinator
from fedretina.data.manifest import RawRow, write_manifest
from fedretina.data.site_data import load_site_data
from fedretina.data.splits import labelled_subset
from fedretina.errors import QuorumError
from fedretina.local.site import Site
from fedretina.loop import run_loop
from fedretina.settings.scalars import RANGES
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.site import SiteDataSettings


class Hospital:
    """Small photographs of made-up eyes, one a patient."""

    def __init__(self, folder: Path, experiment, sizes=(24, 8, 8), classes=5):
        self.folder, self.experiment, self.classes = folder, experiment, classes
        self.splits = [split for split, size in zip(("train", "val", "test"), sizes, strict=True) for _ in range(size)]
        folder.mkdir()
        rng = np.random.default_rng(0)
        for at in range(len(self.splits)):
            image = np.full((64, 64, 3), 30, np.uint8)
            cv2.circle(image, (32, 32), 28, (40, 80, 100 + int(rng.integers(100))), -1)
            cv2.imwrite(str(folder / f"e{at}.png"), image)

    def data(self, divided=0, **words):
        """The data as of now; `divided` is another division of the same patients where it is not 0."""
        other = {"train": "test", "test": "train", "val": "val"}
        splits = [other[one] if divided and at % (2 + divided) == 0 else one for at, one in enumerate(self.splits)]
        cells = words.pop("cells", lambda at: ())
        rows = [
            RawRow(f"e{at}.png", str(at % self.classes), f"p{at}", split, cells(at)) for at, split in enumerate(splits)
        ]
        turned, columns = words.pop("turned", False), words.get("columns", ())
        write_manifest(self.folder / "manifest.csv", rows[::-1] if turned else rows, columns)
        scheme = GradingScheme(grades=tuple(str(grade) for grade in range(self.classes)), referable=("1",))
        settings = SiteDataSettings(manifest=self.folder / "manifest.csv", scheme=scheme, **words)
        return load_site_data("site-1", settings, self.experiment.images, 3, self.folder.parent / "cache")


def one_round(experiment, data, root):
    coordinator = Coordinator(experiment, "r", root / "r" / "server")
    site = Site(experiment, data, root / "r" / "site-1")
    coordinator.begin(["site-1"])
    coordinator.accept("site-1", site.handle(coordinator.order("site-1"), coordinator.down()))
    coordinator.close()


def test_a_list_that_changed_within_a_run_is_refused_until_it_is_back(tiny, tmp_path):
    experiment = tiny()
    hospital, root = Hospital(tmp_path / "images", experiment), tmp_path / "runs"
    one_round(experiment, hospital.data(), root)
    changed = hospital.data(divided=1)
    assert set(hospital.data().split("train").files) & set(changed.split("test").files)
    with pytest.raises(QuorumError, match="put the old list back, or start a new run") as told:
        run_loop(experiment, {"site-1": changed}, root, "r")
    assert not any(word in str(told.value) for word in (".png", "p0", str(tmp_path)))
    assert hospital.data(turned=True).listed == hospital.data().listed  # rows in another order are the same
    got = run_loop(experiment, {"site-1": hospital.data()}, root, "r")
    alone = run_loop(experiment, {"site-1": hospital.data()}, root, "alone")
    assert got["model_digest"] == alone["model_digest"]
    card = json.loads((root / "r" / "site-1" / "final" / "card.json").read_text())
    assert card["data_changes"] == []
    assert stat.S_IMODE((root / "alone" / "site-1").stat().st_mode) == 0o700  # it holds models and patients' images


def test_a_site_may_accept_the_change_and_its_card_says_so(tiny, tmp_path):
    experiment = tiny()
    hospital, root = Hospital(tmp_path / "images", experiment), tmp_path / "runs"
    one_round(experiment, hospital.data(), root)
    run_loop(experiment, {"site-1": hospital.data(divided=1, changes="accept")}, root, "r")
    final = root / "r" / "site-1" / "final"
    card = json.loads((final / "card.json").read_text())
    assert card["data_changes"] == ["train-0001"]
    said = "changed while the run was under way (train-0001): the model may have learned from images that it was then"
    assert said in card["limits"][0]
    assert said in (final / "card.md").read_text().replace("\\", "")
    assert said in json.loads((final / "report.json").read_text())["card_limits"][0]


def test_a_file_that_cannot_be_read_for_a_while_is_no_change(tiny, tmp_path):
    experiment = tiny()
    hospital, root = Hospital(tmp_path / "images", experiment, sizes=(25, 8, 8)), tmp_path / "runs"
    whole = hospital.data()
    one_round(experiment, whole, root)
    (hospital.folder / "e3.png").rename(hospital.folder / "away")
    without = hospital.data()
    assert (without.bad_files, without.fingerprint != whole.fingerprint) == (1, True)
    assert without.listed == whole.listed
    results = run_loop(experiment, {"site-1": without}, root, "r")
    assert set(results["sites"]) == {"site-1"}


@pytest.mark.parametrize(("sizes", "told"), [((8, 5, 5), {"val", "test"}), ((8, 1, 1), set()), ((8, 4, 5), {"test"})])
def test_no_figure_leaves_of_a_split_of_few_patients(tiny, tmp_path, sizes, told):
    experiment = tiny(phases=[{"name": "train", "rounds": 1}], tune={"epochs": 1})
    hospital = Hospital(tmp_path / "images", experiment, sizes=sizes, classes=2)
    results = run_loop(experiment, {"site-1": hospital.data()}, tmp_path / "runs", "r")
    sent = {name for step in results["steps"] for name in step["scalars"].get("site-1", {})}
    sent |= {name for name in results["sites"]["site-1"] if name not in ("theta", "weight")}
    assert sent <= set(RANGES)
    assert {name.split("_")[0] for name in sent if name.startswith(("val_", "test_"))} == told
    assert any(name.startswith("bin_") for name in sent) == ("test" in told)
    assert results["chosen"] == "train-0000"  # the only one, measured or not
    own = json.loads((tmp_path / "runs" / "r" / "site-1" / "final" / "figures.json").read_text())
    assert own["test"]["accuracy"]["value"] is not None  # the site itself has it


@pytest.mark.attack(
    "a lead", "reads what a hospital's manifest says beside labels", "no cell leaves, and sums of few patients do not"
)
def test_columns_beside_stay_at_the_site_and_their_sums_leave_where_many_stand_behind_them(tiny, tmp_path):
    experiment = tiny(phases=[{"name": "train", "rounds": 1}], report={"page": True, "least_patients": 5})
    hospital = Hospital(tmp_path / "images", experiment, sizes=(16, 6, 32), classes=2)
    plain = hospital.data()

    def cells(at: int) -> tuple[str, ...]:
        """In four: a woman ill, a woman well, a man ill, a man well; all but two at their first visit."""
        maker, sex = ("ZEISS", "f") if at // 2 % 2 else ("Topcon", "M")
        return f"Oculus-{at % 3}", maker, sex, "no" if at in (30, 31) else "1"

    data = hospital.data(cells=cells, columns=("camera", "camera_maker", "sex", "first_visit"))
    assert data.listed == plain.listed  # a run that is under way goes on when a column is added
    assert data.fingerprint == plain.fingerprint
    results = run_loop(experiment, {"site-1": data}, tmp_path / "runs", "r")
    sums = {name: value for name, value in results["sites"]["site-1"].items() if name.startswith("group_")}
    assert (sums["group_sex_female_ill"], sums["group_sex_male_well"]) == (8, 8)
    assert (sums["group_camera_maker_zeiss_ill"], sums["group_camera_maker_topcon_well"]) == (8, 8)
    assert not any("first_visit" in name for name in sums)  # two patients at a later visit would follow
    everything = b"".join(
        path.read_bytes() for path in (tmp_path / "runs" / "r" / "server").rglob("*") if path.is_file()
    )
    assert b"Oculus" not in everything
    assert b"sex: female" not in everything  # of one site alone: no page shows it
    report = json.loads((tmp_path / "runs" / "r" / "site-1" / "final" / "report.json").read_text())
    assert [group["value"] for group in report["subgroups"]["camera"]] == ["Oculus-0", "Oculus-1", "Oculus-2"]
    later = next(group for group in report["subgroups"]["first_visit"] if group["value"] == "no")
    assert set(later["figures"].values()) == {None}
    page = (tmp_path / "runs" / "r" / "site-1" / "final" / "report.html").read_text()
    assert "Oculus-1" in page
    assert "too few to say" in page


def test_more_grades_than_a_matrix_holds_reach_the_end(tiny, tmp_path):
    experiment = tiny(phases=[{"name": "train", "rounds": 1}], report={"page": True})
    hospital = Hospital(tmp_path / "images", experiment, sizes=(24, 6, 6), classes=21)
    results = run_loop(experiment, {"site-1": hospital.data()}, tmp_path / "runs", "r")
    assert results["without_result"] == {}
    figures = results["sites"]["site-1"]
    assert figures["grades"] == 21
    assert any(name.startswith("bin_") for name in figures)
    assert not any(name.startswith("confusion") for name in figures)
    assert (tmp_path / "runs" / "r" / "server" / "report.html").exists()


def test_the_patients_of_an_update_are_those_whose_images_the_round_learned_from(tiny, phantoms, tmp_path):
    experiment = tiny(phases=[{"name": "few", "rounds": 1, "label_share": 0.5}, {"name": "train", "rounds": 1}])
    (data,) = phantoms(experiment, "site-1").values()
    train = data.split("train")
    used = labelled_subset(train.patients, train.labels.tolist(), 0.5, experiment.seed)
    behind, every = len({train.patients[at] for at in used}), len(set(train.patients))
    assert behind < every

    def told(least):
        site = {"site-1": replace(data, min_count=least)}
        steps = run_loop(experiment, site, tmp_path, f"least-{least}")["steps"]
        return [step["scalars"]["site-1"].get("patients") for step in steps if step["task"] == "train"]

    assert told(behind) == [behind, every]
    assert told(behind + 1) == [None, every]
    assert told(every + 1) == [None, None]
