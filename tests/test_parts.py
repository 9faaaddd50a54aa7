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


def asked(tmp_path, text):
    (tmp_path / "heavy_ball.py").write_text(text)
    info = tmp_path / "heavy_ball-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: heavy-ball\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedretina.parts]\nheavy_ball = heavy_ball\n")
    paths = {**os.environ, "PYTHONPATH": f"{CUSTOM}{os.pathsep}{tmp_path}"}
    call = [sys.executable, "-c", ASK]
    done = subprocess.run(call, env=paths, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.splitlines()


def test_a_correction_of_another_package_is_found_by_its_entry_point_and_held_to_the_same_checks(tmp_path):
    built, refused = asked(tmp_path, PART.replace("{name}", "heavy_ball"))
    assert built == "HeavyBall 0.5"
    assert "correction 'heavy_ball' moves one global model" in refused


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
    ],
    ids=["broken", "row", "taken", "encoder", "quiet"],
)
def test_a_package_that_brings_a_bad_part_is_named(tmp_path, text, said):
    assert said in asked(tmp_path, text.replace("{name}", "heavy_ball"))[-1]
