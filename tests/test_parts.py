"""Parts of other packages: found by their entry point, when a name is asked for that the product does not have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CUSTOM = Path(__file__).resolve().parents[1] / "custom"
PART = '''
from typing import ClassVar, Literal

from pydantic import Field

from fedretina.corrections.correction import Correction, correction
from fedretina.settings.correction import CorrectionSettings


class HeavyBallSettings(CorrectionSettings):
    """The server goes on in the direction of the last round."""

    has_server_half: ClassVar[bool] = True
    name: Literal["{name}"] = "{name}"
    beta: float = Field(default=0.9, ge=0, lt=1)


@correction(HeavyBallSettings)
class HeavyBall(Correction):
    def __init__(self, settings: HeavyBallSettings) -> None:
        self.beta = settings.beta

    def server(self, round_):
        return round_.mixed
'''
KIND = """
from typing import ClassVar, Literal

from fedretina.data.modalities import ChannelsFirst, DataModality, ResizeArea, modality, picture_pipeline
from fedretina.data.phantoms.fundus import PHANTOMS
from fedretina.settings.images import SquareSettings
from fedretina.settings.scheme_presets import SchemePreset, add_scheme

add_scheme("two_tone", SchemePreset("wide_field", "made up", ("light", "dark"), {"0": "light", "1": "dark"}))


class WideFieldSettings(SquareSettings):
    words: ClassVar[str] = "photographs of the whole retina"
    modality: Literal["wide_field"] = "wide_field"
    tint: float = 0.5


@modality(WideFieldSettings)
class WideField(DataModality):
    phantoms = PHANTOMS

    @staticmethod
    def pipeline(settings):
        return picture_pipeline([ResizeArea(settings.image_size), ChannelsFirst()])
"""
ASK_KIND = """
import sys
from pathlib import Path
from fedretina.cli import main
from fedretina.errors import SettingsError
from fedretina.settings.experiment import Experiment
from fedretina.settings.site import SiteDataSettings, read_data_settings
Experiment.resolve({"row": "fedavg", "images": "oct"})
assert "heavy_ball" not in sys.modules
print(SiteDataSettings(modality="wide_field").modality, "torch" in sys.modules)
print(repr(Experiment.resolve({"row": "fedavg", "images": {"modality": "wide_field", "tint": 0.25}}).images))
out = Path(sys.argv[1])
drawn = ["data", "phantom", "--site", "site-1", "--images", "16", "--size", "32", "--modality", "wide_field"]
main([*drawn, "--scheme", "two_tone", "--out", str(out / "drawn")], standalone_mode=False)
print("site file:", read_data_settings(out / "drawn" / "site.yaml").modality)
for images in ({"modality": "wide_field", "crop": True}, "x_ray"):
    try:
        Experiment.resolve({"row": "fedavg", "images": images})
    except SettingsError as error:
        print(error)
try:
    main(["data", "phantom", "--site", "a", "--out", str(out / "b"), "--modality", "x_ray"], standalone_mode=False)
except Exception as error:
    print(error.format_message())
"""
ASK = """
import sys
from fedretina.errors import SettingsError
from fedretina.settings.experiment import Experiment
try:
    Experiment.resolve({"row": "fedavg", "correction": "fedprox"})
    assert "heavy_ball" not in sys.modules and "torch" not in sys.modules
    chosen = Experiment.resolve({"row": "fedavg", "correction": {"name": "heavy_ball", "beta": 0.5}})
    from fedretina.corrections.correction import build_correction
    print(type(build_correction(chosen.correction, chosen.training)).__name__, chosen.correction.beta)
    Experiment.resolve({"row": "fedap", "correction": "heavy_ball"})
except SettingsError as error:
    print(error)
"""


def asked(tmp_path, text, ask=ASK):
    (tmp_path / "heavy_ball.py").write_text(text)
    info = tmp_path / "heavy_ball-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: heavy-ball\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedretina.parts]\nheavy_ball = heavy_ball\n")
    paths = {**os.environ, "PYTHONPATH": f"{CUSTOM}{os.pathsep}{tmp_path}"}
    call = [sys.executable, "-c", ask, str(tmp_path)]
    done = subprocess.run(call, env=paths, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.splitlines()


def test_a_correction_of_another_package_is_found_by_its_entry_point_and_held_to_the_same_checks(tmp_path):
    built, refused = asked(tmp_path, PART.replace("{name}", "heavy_ball"))
    assert built == "HeavyBall 0.5"
    assert "correction 'heavy_ball' moves one global model" in refused


LISTS = """
from fedretina.cli import main, methods
from fedretina.rows import ROWS
methods.work_out = lambda *words: exit(f"at work with {[row for row in ROWS if 'heavy' in row]}")
try:
    main(["methods"], standalone_mode=False)
except SystemExit as left:
    print(left)
"""


PLAN = """
from fedretina.settings.plan import merged
from fedretina_papers.plan import BenchmarkPlan, preset
words = {"rows": ["singleset", "fedavg_heavy"], "reference": "singleset", "beside": "singleset"}
words["experiment"] = {"phases": {"train": {"rounds": 2}}}
print([choice.name for choice in BenchmarkPlan.read(merged(preset("feduaa"), words)).rows])
"""


@pytest.mark.parametrize(
    ("ask", "told"),
    [  # To work the rows out takes seconds: what counts is that those of others are there by then.
        (LISTS, "at work with ['fedavg_heavy']"),
        (PLAN, "['singleset', 'fedavg_heavy']"),
    ],
    ids=["methods", "benchmark"],
)
def test_a_row_of_another_package_is_found_by_all_who_ask_for_one(tmp_path, ask, told):
    row = "from fedretina.rows import ROWS, add_row\nadd_row('fedavg_heavy', ROWS['fedavg'])\n"
    assert told in asked(tmp_path, row, ask)


def test_a_modality_of_another_package_works_in_jobs_site_files_and_commands(tmp_path):
    site, job, *drawn, unread, unknown, choice = asked(tmp_path, KIND, ASK_KIND)
    assert site == "wide_field False"
    assert job == "WideFieldSettings(modality='wide_field', image_size=256, tint=0.25)"
    assert any("pictures of a phantom hospital (wide_field, 32 px, seed 1)" in line for line in drawn)
    assert drawn[-1] == "site file: wide_field"
    assert "images.crop: 'wide_field' does not read it, 'fundus' alone does" in unread
    assert "images.modality: it is 'x_ray', but may be 'fundus', 'oct'" in unknown
    assert "'wide_field'" in unknown
    assert "'x_ray' is not one of" in choice
    assert "'wide_field'" in choice


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_module", "the part 'heavy_ball' (heavy_ball) of another package cannot be imported"),
        (
            "from fedretina.rows import ROWS, add_row\nadd_row('fedbn', ROWS['fedavg'])\n",
            "there is a row 'fedbn' already",
        ),
        (PART.replace("{name}", "scaffold"), "name 'scaffold' stands for fedretina.settings.correction.Scaffold"),
        (
            "from typing import Literal\nfrom fedretina.settings.encoder import EncoderTraits, encoder_traits\n"
            "class Mine(EncoderTraits):\n    name: Literal['resnet18'] = 'resnet18'\n"
            "encoder_traits('resnet18')\n",
            "name 'resnet18' stands for fedretina.settings.encoder.ResNet18Traits and for heavy_ball.Mine",
        ),
        (
            PART.replace("    has_server_half: ClassVar[bool] = True\n", ""),
            "has a server half, but its settings do not",
        ),
        (
            KIND.replace("    tint: float = 0.5\n", "    signal: ClassVar[bool] = True\n"),
            "WideFieldSettings says that WideField takes signals: let it be a SignalModality",
        ),
        (KIND.replace('"two_tone"', '"icdr5"'), "there is a grading scheme 'icdr5' already"),
    ],
    ids=["broken", "row", "taken", "encoder", "quiet", "modality", "scheme"],
)
def test_a_package_that_brings_a_bad_part_is_named(tmp_path, text, said):
    assert said in asked(tmp_path, text.replace("{name}", "heavy_ball"))[-1]
