"""A site in a child process: the same bits, and a death that costs one answer."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from fedretina.aggregation.coordinator import Coordinator
from fedretina.errors import StateError, StoppedError, TrainingError
from fedretina.exchange.payload import tensors_digest
from fedretina.local.child_trainer import ChildTrainer, SiteRecipe
from fedretina.locks import folder_lock
from fedretina.settings.site import SiteDataSettings
from fedretina.storage import write_tensors
from memory_limit import memory_limit

sys.path.insert(0, str(Path(__file__).parents[1] / "flare"))
from simulation import SMALL  # and the children know its encoder


@pytest.fixture
def little_encoder():
    """The children would have the whole one."""


@pytest.fixture
def recipe(tiny, tmp_path):
    def make(folder, **words):
        experiment = tiny(**{"network": SMALL["network"], "phases": [{"name": "train", "rounds": 1}], **words})
        settings = SiteDataSettings(phantom_images=experiment.phantom_images)
        return SiteRecipe(
            experiment=experiment, site="site-1", data=settings, folder=tmp_path / folder, cache=tmp_path / "cache"
        )

    return make


@pytest.fixture
def first_order(recipe, tmp_path):
    """The order of round 0, and what comes with it."""
    coordinator = Coordinator(recipe("x").experiment, "r", tmp_path / "r" / "server")
    coordinator.begin(["site-1"])
    return coordinator.order("site-1"), coordinator.down("site-1")


def drive(host, experiment, folder, before=lambda order, down: None):
    """One site's run; the answers' digests and scalars. Something may be done with the first order before."""
    coordinator = Coordinator(experiment, "r", folder / "server")
    told = []
    while coordinator.done < len(coordinator.plan):
        coordinator.begin(["site-1"])
        if not told:
            before(coordinator.order("site-1"), coordinator.down("site-1"))
        payload = host.handle(coordinator.order("site-1"), coordinator.down("site-1"))
        told.append((tensors_digest(payload.tensors), dict(payload.scalars), payload.stamp))
        coordinator.accept("site-1", payload)
        coordinator.close()
    return told


def is_set_up(child):
    """Whether a child has told the kernel how it wants to die, and is about to work."""
    try:
        told = Path(f"/proc/{child.pid}/oom_score_adj").read_text().strip() == "1000"
        return told and "libtorch" in Path(f"/proc/{child.pid}/maps").read_text()
    except OSError:
        return False


def once_there(then):
    """A `stop` that does something to the child as soon as it is there."""
    seen = []

    def stop():
        for child in psutil.Process().children():
            if child.pid not in seen and is_set_up(child):
                seen.append(child.pid)
                then(child)
        return False

    stop.seen = seen
    return stop


def gone(error, folder, stop):
    """Nothing is left of a child that died, and its error names no folder."""
    assert str(folder) not in str(error)
    assert len(stop.seen) == 1
    assert not psutil.pid_exists(stop.seen[0])
    assert not (folder / "child").exists()
    assert not (folder / "state.json").exists()


@pytest.mark.slow
def test_a_child_gives_the_bits_of_a_site_in_this_process_after_a_death_too(recipe, tmp_path):
    words = {
        "row": "feduaa_scaffold",
        "tune": {"epochs": 1},
    }  # controls and memory, a tuning step, no tensors at the end
    inline, child = recipe("inline/site-1", **words), recipe("child/site-1", **words)
    expected = drive(inline.build(), inline.experiment, tmp_path / "inline")
    host = ChildTrainer(child)

    def killed(order, down):
        stop = once_there(lambda process: process.kill())
        with pytest.raises(TrainingError, match="the trainer was killed by signal 9, perhaps out of memory") as told:
            host.handle(order, down, stop)
        gone(told.value, child.folder, stop)

    assert drive(host, child.experiment, tmp_path / "child", killed) == expected
    files = {path.relative_to(inline.folder) for path in inline.folder.rglob("*") if path.is_file()}
    assert {path.relative_to(child.folder) for path in child.folder.rglob("*") if path.is_file()} == files
    for name in ("state.json", "final/figures.json", "final/card.json", "final/report.json"):
        assert (child.folder / name).read_bytes() == (inline.folder / name).read_bytes()


@pytest.mark.slow
def test_a_childs_death_out_of_memory_is_an_error_like_any_other(recipe, first_order):
    order, tensors = first_order
    host = ChildTrainer(recipe("site-1"))

    def short_of_memory(child):
        there = child.memory_info().vms + 2**20
        child.rlimit(psutil.RLIMIT_AS, (there, there))

    stop = once_there(short_of_memory)
    with pytest.raises(TrainingError) as told:
        host.handle(order, tensors, stop)
    gone(told.value, recipe("site-1").folder, stop)


@pytest.mark.slow
def test_an_abort_reaches_the_child(recipe, first_order):
    order, tensors = first_order
    # Other tests of this process may have left children that live on, such as multiprocessing's tracker.
    before = {child.pid for child in psutil.Process().children()}
    seen = []

    def stop():
        seen.extend(child.pid for child in psutil.Process().children() if child.pid not in before)
        return bool(seen)

    with pytest.raises(StoppedError, match="train round 0"):
        ChildTrainer(recipe("site-1")).handle(order, tensors, stop)
    assert not psutil.pid_exists(seen[0])


@pytest.mark.slow
def test_a_sites_own_errors_come_back_as_they_are(recipe, first_order, tmp_path, caplog):
    order, tensors = first_order
    (tmp_path / "site-1").mkdir(exist_ok=True)
    (tmp_path / "site-1" / "state.json").write_text(json.dumps({"digest": "another"}))
    with pytest.raises(StateError, match="holds state of other settings"):
        ChildTrainer(recipe("site-1")).handle(order, tensors)
    broken = {**tensors, sorted(tensors)[0]: torch.zeros(3)}  # an error that nobody raises on purpose
    with pytest.raises(TrainingError, match=r"the site's trainer failed with RuntimeError\.$"):
        ChildTrainer(recipe("another")).handle(order, broken)
    assert "Traceback" in caplog.text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.slow
def test_no_child_outlives_its_parent_and_the_folder_is_held_until_it_is_dead(recipe, first_order, tmp_path):
    order, _ = first_order
    code = (
        "import sys, json; from pathlib import Path\n"
        "from fedretina.local.child_trainer import ChildTrainer; from fedretina.local.child_trainer import SiteRecipe\n"
        "from fedretina.exchange.payload import Order; from fedretina.exchange.payload import Stamp\n"
        "from fedretina.locks import folder_lock\n"
        "recipe = SiteRecipe.model_validate_json(sys.argv[1]); words = json.loads(sys.argv[2])\n"
        "with folder_lock(recipe.folder, 0) as lock:\n"
        "    order = Order(**{**words, 'stamp': Stamp(*words['stamp'])})\n"
        "    ChildTrainer(recipe, lock).handle(order, {})\n"
    )
    made = recipe("site-1")
    arguments = [sys.executable, "-c", code, made.model_dump_json(), json.dumps(order._asdict())]
    parent = subprocess.Popen(arguments)
    try:
        deadline = time.monotonic() + 600
        while not (children := [child for child in psutil.Process(parent.pid).children() if is_set_up(child)]):
            assert parent.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        children[0].suspend()  # it cannot end by itself
        os.kill(parent.pid, signal.SIGKILL)
        with folder_lock(made.folder, 600):
            assert not children[0].is_running() or children[0].status() == psutil.STATUS_ZOMBIE
    finally:
        parent.kill()
        parent.wait()


@pytest.mark.slow
def test_short_of_memory_the_kernel_takes_the_child_and_not_the_larger_parent(recipe, first_order, tmp_path):
    order, tensors = first_order
    code = (
        "import sys, json; from pathlib import Path\n"
        "from fedretina.errors import TrainingError\n"
        "from fedretina.local.child_trainer import ChildTrainer; from fedretina.local.child_trainer import SiteRecipe\n"
        "from fedretina.exchange.payload import Order; from fedretina.exchange.payload import Stamp\n"
        "from fedretina.storage import read_tensors\n"
        "recipe = SiteRecipe.model_validate_json(sys.argv[1]); words = json.loads(sys.argv[2])\n"
        "order = Order(**{**words, 'stamp': Stamp(*words['stamp'])})\n"
        "tensors, _ = read_tensors(Path(sys.argv[3]))\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try: ChildTrainer(recipe).handle(order, tensors)\n"
        "except TrainingError as error: print(error, flush=True)\n"
    )
    write_tensors(tmp_path / "down", tensors, {}, durable=False)
    made = recipe("site-1")
    arguments = [made.model_dump_json(), json.dumps(order._asdict()), str(tmp_path / "down")]
    with memory_limit(f"fedretina-test-{os.getpid()}") as limit:
        if limit is None:
            pytest.skip("a memory cgroup cannot be made here: that needs root")
        put_in = 'echo $$ > "$0" && exec "$@"'
        into = ["sh", "-c", put_in, str(limit.folder / "cgroup.procs"), sys.executable, "-c", code]
        parent = subprocess.Popen([*into, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert parent.stdout.readline() == "ready\n"
            limit.hold(limit.taken + 200 * 2**20)  # less than it takes to import what a trainer needs
            told, _ = parent.communicate("go\n", 120)
        finally:
            parent.kill()
            parent.wait()
        assert parent.returncode == 0
        assert "the trainer was killed by signal 9, perhaps out of memory; nothing of this round is kept." in told
        assert limit.killed == 1
    assert not (made.folder / "state.json").exists()
