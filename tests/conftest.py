"""Small phantom federations that every test may use."""

import os

# Before torch is imported: two threads a process on cores that are busy slow small tensors ten times.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# isort: split
import copy
from collections.abc import Callable
from pathlib import Path

import pytest

from fedretina.data.site_data import load_site_data
from fedretina.settings.experiment import Experiment
from fedretina.settings.site import SiteDataSettings

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_collection_modifyitems(items):
    """Tests of real images skip where there are none, and say so."""
    if not SHARED.is_dir():
        for item in items:
            if item.get_closest_marker("real"):
                item.add_marker(pytest.mark.skip(reason="the real images of ../shared/data are not here"))


@pytest.fixture
def shared() -> Path:
    return SHARED


@pytest.fixture
def tiny() -> Callable[..., Experiment]:
    """An experiment that trains in about a second a site; settings may be given as nested words."""

    def make(**words) -> Experiment:
        activity = words.get("row") == "fedee_activity"
        base = {
            "row": "feduaa",
            "seed": 3,
            "phases": [{"name": "train", "rounds": 2}],
            "images": {"length": 128} if activity else {"image_size": 32},
            "network": {"encoder": "signal_cnn" if activity else "efficientnet_lite0", "head": {"width": 16}},
            "training": {"batch_size": 8, "learning_rate": 0.05, "threads": 1},
            "phantom_images": 24,
            "report": {"draws": 10, "page": False},
        }
        return Experiment.resolve(_merged(base, words))

    return make


@pytest.fixture(scope="session")
def drawn() -> dict:
    """Phantom sites that a test of this process has drawn already; drawing takes longer than a step over them."""
    return {}


@pytest.fixture
def phantoms(tmp_path, drawn) -> Callable[..., dict]:
    """Data of phantom sites for an experiment, a copy for each test."""

    def make(experiment: Experiment, *names: str) -> dict:
        settings = SiteDataSettings(phantom_images=experiment.phantom_images)
        found = {}
        for name in names or ("site-1", "site-2", "site-3"):
            key = (name, settings, experiment.images.model_dump_json(), experiment.seed)
            if key not in drawn:
                drawn[key] = load_site_data(name, settings, experiment.images, experiment.seed, tmp_path / name)
            found[name] = copy.deepcopy(drawn[key])
        return found

    return make


@pytest.fixture
def clean_environment(monkeypatch) -> None:
    """No setting of the developer's shell reaches a test."""
    for name in list(os.environ):
        if name.startswith("FEDRETINA_"):
            monkeypatch.delenv(name)


def _merged(base: dict, over: dict) -> dict:
    merged = dict(base)
    for key, value in over.items():
        merged[key] = (
            _merged(base[key], value) if isinstance(base.get(key), dict) and isinstance(value, dict) else value
        )
    return merged
