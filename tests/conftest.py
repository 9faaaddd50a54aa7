"""Small phantom federations that every test may use.

Nothing of torch is imported before it is used: the process that hands tests to the workers of a run needs none.
"""

import gc
import os

# Before torch is imported: two threads a process on cores that are busy slow small tensors ten times.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # nor do those of a test that asks for two spin while they wait
# Nor does each of them look through all installed packages for plugins of pydantic: 0.15 s of 4 at the start of one.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
# All processes that tests start print the stacks of their threads when they are aborted (tests/flare/standing.py).
os.environ.setdefault("PYTHONFAULTHANDLER", "1")
# isort: split
import copy
import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedretina.garbage import collect_rarely
from fedretina.rows import row
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import merged
from fedretina.settings.site import SiteDataSettings

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


ONE_FEDERATION = (
    *("test_proxy", "test_federation", "test_encrypted"),
    *("test_hostile_jobs", "test_intruders", "test_retention"),
)
"""Files that share one federation (tests/provisioned/conftest.py)."""
LONGEST = (*ONE_FEDERATION, "test_faults", "test_admin_commands")
"""Files that begin first, so that no process is left with one of them alone at the end."""


FLARE_FOLDERS = ("faults", "flare", "poc", "provisioned")
"""Where `make test-flare` looks for tests of its marks."""


@pytest.hookimpl(optionalhook=True)  # where pytest-xdist is
def pytest_xdist_make_scheduler(config, log):
    """Under `--dist loadfile` a federation is started once: its tests share one process, whatever file they stand in.

    Not by the marks of `--dist loadgroup`: with pytest 9.2 pytest-xdist 3.8 passes over them without a word.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneFederation(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "federation" if Path(file).stem in ONE_FEDERATION else file

    config.option.loadscopereorder = False  # in the order of the collection
    return OneFederation(config, log)


def pytest_collection_modifyitems(items):
    """The longest files begin first; tests of real images skip where there are none, and say so.

    Raises:
        pytest.UsageError: A test of FLARE stands where `make test` would start it in neither half.
    """
    for item in items:
        inside = item.path.relative_to(Path(__file__).parent).parts[0] in FLARE_FOLDERS
        if not inside and (item.get_closest_marker("flare") or item.get_closest_marker("provisioned")):
            raise pytest.UsageError(f"{item.nodeid}: tests of FLARE stand in {', '.join(FLARE_FOLDERS)} of tests/")
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
    if not SHARED.is_dir():
        for item in items:
            if item.get_closest_marker("real"):
                item.add_marker(pytest.mark.skip(reason="the real images of ../shared/data are not here"))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Modules and tests stay to the end: looking for garbage among them takes half of the time of collecting.

    While tests run it is looked for as rarely as in a process of our own: a twentieth of their time.
    """
    gc.disable()
    done = yield
    gc.freeze()
    gc.enable()
    collect_rarely()
    return done


def pytest_unconfigure():
    gc.unfreeze()  # or libraries would tell at the end of what they think has leaked


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Of several workers one rewrites the asserts of a file, and the others read what pytest kept of it."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return (yield)


@pytest.fixture(scope="session")
def once(tmp_path_factory) -> Callable[[str], None]:
    """Fails where a second process of a test run starts a federation that its tests should share."""

    def claim(name: str) -> None:
        if "PYTEST_XDIST_WORKER" not in os.environ:
            return
        started = tmp_path_factory.getbasetemp().parent / f"{name}.started"
        assert not started.exists(), f"{name} is started by two processes of this test run: give pytest --dist loadfile"
        started.touch()

    return claim


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks() -> Iterator[None]:
    """Writes of this process wait for no disk: that takes an eighth of a tiny run, and only a power cut could tell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture
def shared() -> Path:
    return SHARED


@contextmanager
def few_blocks() -> Iterator[None]:
    """EfficientNet-Lite0 of its own blocks, but few and narrow: 15 convolutions for 49, 24,000 weights for 3.4 million.

    ViT-Small likewise: 4 blocks of width 48 for 12 of 384. Each site tries its gate on few spoiled images.

    Almost all of a tiny run's time goes by the size of its network. What these tests look at does not: partitions,
    bits, files and messages are those of any network of convolutions with BatchNorm. It holds in this process alone:
    tests that compare with another process leave it out, by a fixture of the same name that does nothing.
    """
    from tests.flare.parts.little_lite0 import little_lite0
    from timm.models import efficientnet

    from fedretina.local import gate
    from fedretina.networks import vit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(efficientnet, "tf_efficientnet_lite0", lambda **_: little_lite0())
        patch.setattr(vit, "_WIDTH", 48)
        patch.setattr(vit, "_DEPTH", 4)
        patch.setattr(gate, "_SPOILED", 2)  # images that each site spoils at its end; a tenth of a tiny run with all
        yield


@pytest.fixture
def little_encoder() -> Iterator[None]:
    """As `few_blocks`, for a test."""
    with few_blocks():
        yield


@pytest.fixture(scope="module")
def little_encoders() -> Iterator[None]:
    """As `few_blocks`, for what all tests of a file share."""
    with few_blocks():
        yield


@pytest.fixture
def tiny(little_encoder) -> Callable[..., Experiment]:
    """An experiment that trains in a tenth of a second per site; settings may be given as nested words."""

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
            "verdict": "off",  # a sixth of the time; every row with it: tests/test_loop.py
        }
        asked = _merged(base, words)
        if merged(row(asked["row"]).settings, words).get("network", {}).get("head", {}).get("layout") == "linear":
            del asked["network"]["head"]["width"]  # which a linear head does not read
        if "training" in asked and asked["row"] == "analytic":
            asked["phases"] = words.get("phases", row("analytic").settings["phases"])
        return Experiment.resolve(asked)

    return make


@pytest.fixture(scope="session")
def drawn() -> dict:
    """Phantom sites that a test of this process has drawn already; drawing takes longer than a step over them."""
    return {}


@pytest.fixture
def phantoms(tmp_path, drawn) -> Callable[..., dict]:
    """Data of phantom sites for an experiment, a copy for each test."""

    from fedretina.data.site_data import load_site_data

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


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Callable[..., tuple[dict, Path]]:
    """Results of a run of the loop that nothing disturbs, and the folder in which it lies as "whole", for reading.

    Tests of a file that hold something against the same run share it; its data are as `phantoms` gives them.
    """
    from fedretina.loop import run_loop

    made: dict = {}

    def make(experiment: Experiment, data: dict) -> tuple[dict, Path]:
        key = (experiment.model_dump_json(), tuple(data))
        if key not in made:
            root = tmp_path_factory.mktemp("undisturbed")
            made[key] = run_loop(experiment, data, root, "whole"), root
        found, root = made[key]
        return copy.deepcopy(found), root

    return make


@pytest.fixture(scope="session")
def clean_site(tmp_path_factory) -> Path:
    """A site's folder in which the data check finds nothing, for reading."""
    from little_eyes import write_site

    folder = tmp_path_factory.mktemp("clean") / "north"
    write_site(folder)
    return folder


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
