import errno
import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from fedretina.data.cache import build_cache
from fedretina.errors import DataError, StoppedError
from fedretina.settings.images import FundusSettings

SETTINGS = FundusSettings(image_size=32)
NAMES = [f"i{k}.png" for k in range(6)]


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "images"
    (folder / "sub").mkdir(parents=True)
    for k, name in enumerate(NAMES):
        draw(folder / name, k)
    return folder


def draw(path, k):
    picture = np.random.default_rng(k).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    cv2.imwrite(str(path), picture)


def slow(root, names, settings=SETTINGS):
    from fedretina.data.modalities.fundus import Fundus

    return np.stack([Fundus.pipeline(settings)(root / name) for name in names])


@pytest.fixture
def computed(monkeypatch):
    """Names of the files that the pipeline was called on."""
    from fedretina.data.modalities.fundus import Fundus

    seen, real = [], Fundus.pipeline

    def spy(settings):
        run = real(settings)
        return lambda path: (seen.append(Path(path).name), run(path))[1]

    monkeypatch.setattr(Fundus, "pipeline", staticmethod(spy))
    return seen


def test_holds_what_the_pipeline_gives(root, tmp_path):
    found = build_cache(NAMES, root, SETTINGS, tmp_path / "c", "refuse")
    assert found.kept == tuple(range(6))
    assert found.bad == ()
    assert np.array_equal(found.images, slow(root, NAMES))
    assert not found.images.flags.writeable
    assert isinstance(found.images, np.memmap)
    assert (tmp_path / "c").stat().st_mode & 0o077 == 0


def test_only_changed_files_are_computed(root, tmp_path, computed):
    folder = tmp_path / "c"
    build_cache(NAMES, root, SETTINGS, folder, "refuse")
    assert sorted(computed) == NAMES
    computed.clear()
    index = (folder / "index.json").stat().st_mtime_ns
    build_cache(NAMES, root, SETTINGS, folder, "refuse")
    assert computed == []
    assert (folder / "index.json").stat().st_mtime_ns == index

    draw(root / NAMES[2], 99)
    draw(root / "sub" / "new.png", 50)
    names = [NAMES[5], "sub/new.png", NAMES[2], NAMES[0]]
    found = build_cache(names, root, SETTINGS, folder, "refuse")
    assert sorted(computed) == [NAMES[2], "new.png"]
    assert np.array_equal(found.images, slow(root, names))
    assert len(list(folder.glob("images-*"))) == 1


def test_a_build_that_is_stopped_keeps_its_images_and_the_next_one_goes_on(root, tmp_path, computed):
    def stop(done, of):
        if done == 2:
            raise StoppedError(f"after {done} of {of}")

    folder = tmp_path / "c"
    build_cache([NAMES[5]], root, SETTINGS, folder, "refuse")
    with pytest.raises(StoppedError, match="after 2 of 6"):
        build_cache(NAMES, root, SETTINGS, folder, "refuse", stop)
    computed.clear()
    told = []
    found = build_cache(NAMES, root, SETTINGS, folder, "refuse", lambda done, of: told.append((done, of)))
    assert sorted(computed) == NAMES[2:5]  # what lay there before stays, too
    assert told == [(3, 6), (4, 6), (5, 6)]  # as soon as there is something to lose
    assert np.array_equal(found.images, slow(root, NAMES))
    assert len(list(folder.glob("images-*"))) == 1


def test_a_touched_file_is_computed_again(root, tmp_path, computed):
    build_cache(NAMES, root, SETTINGS, tmp_path / "c", "refuse")
    computed.clear()
    stat = (root / NAMES[1]).stat()
    os.utime(root / NAMES[1], ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    build_cache(NAMES, root, SETTINGS, tmp_path / "c", "refuse")
    assert computed == [NAMES[1]]


def test_other_settings_or_another_root_make_it_stale(root, tmp_path, computed):
    build_cache(NAMES, root, SETTINGS, tmp_path / "c", "refuse")
    computed.clear()
    other = FundusSettings(image_size=32, enhance="clahe")
    found = build_cache(NAMES, root, other, tmp_path / "c", "refuse")
    assert len(computed) == 6
    assert np.array_equal(found.images, slow(root, NAMES, other))
    moved = root.rename(tmp_path / "moved")
    computed.clear()
    build_cache(NAMES, moved, other, tmp_path / "c", "refuse")
    assert len(computed) == 6


def test_a_valid_cache_needs_no_monai(root, tmp_path):
    build_cache(NAMES, root, SETTINGS, tmp_path / "c", "refuse")
    code = (
        "import sys; from pathlib import Path; from fedretina.data.cache import build_cache;"
        "from fedretina.settings.images import FundusSettings;"
        f"c = build_cache({NAMES!r}, Path({str(root)!r}), FundusSettings(image_size=32),"
        f" Path({str(tmp_path / 'c')!r}), 'refuse');"
        "assert len(c.images) == 6; assert 'monai' not in sys.modules and 'cv2' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def test_bad_files_are_skipped_or_refused(root, tmp_path, computed):
    data = cv2.imencode(".jpg", np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))[1].tobytes()
    (root / "cut.jpg").write_bytes(data[: len(data) // 2])
    names = ["cut.jpg", NAMES[0], "missing.png", NAMES[1]]
    found = build_cache(names, root, SETTINGS, tmp_path / "c", "skip")
    assert found.kept == (1, 3)
    assert found.bad == ("cut.jpg", "missing.png")
    assert np.array_equal(found.images, slow(root, NAMES[:2]))
    with pytest.raises(DataError, match=r"2 of 4 images.*cut\.jpg, missing\.png"):
        build_cache(names, root, SETTINGS, tmp_path / "c", "refuse")

    computed.clear()
    assert build_cache(names, root, SETTINGS, tmp_path / "c", "skip").bad == found.bad
    assert computed == []
    (root / "cut.jpg").write_bytes(data)
    draw(root / "missing.png", 3)
    assert build_cache(names, root, SETTINGS, tmp_path / "c", "refuse").kept == (0, 1, 2, 3)
    assert sorted(computed) == ["cut.jpg", "missing.png"]


def test_a_long_list_of_bad_files_is_cut(root, tmp_path):
    with pytest.raises(DataError, match="and 3 more"):
        build_cache([f"none{k}.png" for k in range(8)], root, SETTINGS, tmp_path / "c", "refuse")


def test_all_bad_and_none_at_all(root, tmp_path):
    found = build_cache(["none.png"], root, SETTINGS, tmp_path / "c", "skip")
    assert found.images.shape == (0, 3, 32, 32)
    assert found.bad == ("none.png",)
    assert build_cache([], root, SETTINGS, tmp_path / "d", "refuse").images.shape == (0, 3, 32, 32)


@pytest.mark.parametrize("name", ["../x.png", "/etc/x.png", "sub/../../x.png", ""])
def test_a_path_escape_is_refused(root, tmp_path, name):
    draw(tmp_path / "x.png", 1)
    with pytest.raises(DataError):
        build_cache([NAMES[0], name], root, SETTINGS, tmp_path / "c", "skip")


@pytest.mark.parametrize("damage", ["no index", "half index", "format", "no array", "short array", "other type"])
def test_a_damaged_cache_is_built_again(root, tmp_path, damage):
    folder = tmp_path / "c"
    build_cache(NAMES, root, SETTINGS, folder, "refuse")
    index, array = folder / "index.json", next(folder.glob("images-*.npy"))
    if damage == "no index":
        index.unlink()
    elif damage == "half index":
        index.write_text(index.read_text()[:-40])
    elif damage == "format":
        index.write_text(json.dumps({**json.loads(index.read_text()), "format": 0}))
    elif damage == "no array":
        array.unlink()
    elif damage == "short array":
        os.truncate(array, array.stat().st_size - 100)
    else:
        np.save(array, np.zeros((6, 3, 32, 32)))
    found = build_cache(NAMES, root, SETTINGS, folder, "refuse")
    assert np.array_equal(found.images, slow(root, NAMES))
    assert len(list(folder.glob("images-*"))) == 1


def test_a_full_disk_leaves_the_old_cache(root, tmp_path, monkeypatch):
    folder = tmp_path / "c"
    old = build_cache(NAMES, root, SETTINGS, folder, "refuse")
    before = sorted(path.name for path in folder.iterdir())
    draw(root / NAMES[0], 77)

    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="disk is full"):
        build_cache(NAMES, root, SETTINGS, folder, "refuse")
    monkeypatch.undo()
    assert sorted(path.name for path in folder.iterdir()) == before
    draw(root / NAMES[0], 0)
    assert np.array_equal(build_cache(NAMES, root, SETTINGS, folder, "refuse").images, old.images)


def forked(run, *arguments):
    """A child that pytest ends with its own process."""
    import monai.transforms  # noqa: F401  # or each child imports it, which takes a busy machine a minute

    child = multiprocessing.get_context("fork").Process(target=run, args=arguments, daemon=True)
    child.start()
    return child


def _build_and_die(root, folder, row):
    from fedretina.data.modalities.fundus import Fundus

    cv2.setNumThreads(0)  # its pool does not survive a fork
    real, calls = Fundus.pipeline, []

    def dying(settings):
        run = real(settings)

        def one(path):
            calls.append(path)
            if len(calls) == row:
                os._exit(9)
            return run(path)

        return one

    Fundus.pipeline = staticmethod(dying)
    build_cache(NAMES, root, SETTINGS, folder, "refuse")


def test_a_kill_leaves_the_old_cache_and_its_rest_is_swept(root, tmp_path):
    folder = tmp_path / "c"
    build_cache(NAMES[:3], root, SETTINGS, folder, "refuse")
    index = (folder / "index.json").read_bytes()
    child = forked(_build_and_die, root, folder, 3)
    child.join()
    assert child.exitcode == 9
    assert (folder / "index.json").read_bytes() == index
    assert len(list(folder.glob("*.tmp"))) == 1
    assert np.array_equal(build_cache(NAMES[:3], root, SETTINGS, folder, "refuse").images, slow(root, NAMES[:3]))
    build_cache(NAMES, root, SETTINGS, folder, "refuse")
    assert len(list(folder.glob("images-*"))) == 1


def _build_slowly(root, folder, log):
    from fedretina.data.modalities.fundus import Fundus

    cv2.setNumThreads(0)
    real = Fundus.pipeline

    def careful(settings):
        run = real(settings)

        def one(path):
            with open(log, "a", encoding="utf-8") as handle:
                handle.write(f"{Path(path).name}\n")
            time.sleep(0.05)
            return run(path)

        return one

    Fundus.pipeline = staticmethod(careful)
    build_cache(NAMES, root, SETTINGS, folder, "refuse")


def test_two_processes_compute_each_image_once(root, tmp_path):
    jobs = [forked(_build_slowly, root, tmp_path / "c", tmp_path / "log") for _ in range(2)]
    for job in jobs:
        job.join()
    assert [job.exitcode for job in jobs] == [0, 0]
    assert sorted((tmp_path / "log").read_text().split()) == NAMES


def test_an_open_map_outlives_a_rebuild(root, tmp_path):
    old = build_cache(NAMES, root, SETTINGS, tmp_path / "c", "refuse")
    copy = np.array(old.images)
    draw(root / NAMES[0], 55)
    build_cache(NAMES, root, SETTINGS, tmp_path / "c", "refuse")
    assert np.array_equal(old.images, copy)
