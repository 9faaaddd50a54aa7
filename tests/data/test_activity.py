import numpy as np
import pytest

from fedretina.data.cache import build_cache
from fedretina.data.modalities.activity import Activity, window_bytes
from fedretina.data.wav import wave_bytes
from fedretina.errors import DataError
from fedretina.settings.images import ActivitySettings


def test_bytes_are_the_nearest_steps_and_clip():
    settings = ActivitySettings(length=64, reach=30)
    samples = np.zeros((64, 3))
    samples[:5, 0] = [-30, -31, 30, 300, 9.81]
    found = window_bytes(samples, settings)
    assert found.shape == settings.shape == (3, 1, 64)
    assert found[0, 0, :4].tolist() == [0, 0, 255, 255]
    assert found[0, 0, 4] / 127.5 * 30 - 30 == pytest.approx(9.81, abs=0.12)
    assert set(found[1, 0].tolist()) == {128}  # 127.5, to the even


def test_rounding_is_within_half_a_step():
    rng = np.random.default_rng(3)
    samples = rng.uniform(-30, 30, (1000, 3))
    back = window_bytes(samples, ActivitySettings())[:, 0].T / 127.5 * 30 - 30
    assert np.max(np.abs(back - samples)) <= 30 / 255 + 1e-9


@pytest.mark.parametrize(("rate", "shape"), [(50, (64, 3)), (100, (63, 3)), (100, (64,)), (100, (64, 2))])
def test_files_of_another_form_are_refused(tmp_path, rate, shape):
    path = tmp_path / "w.wav"
    path.write_bytes(wave_bytes(rate, np.zeros(shape, np.float32)))
    with pytest.raises(DataError, match="expected 64 of 3 at 100 Hz"):
        Activity.pipeline(ActivitySettings(length=64))(path)


def test_windows_go_through_the_cache(tmp_path):
    settings = ActivitySettings(length=64)
    for name, value in (("a", 1.0), ("b", 2.0)):
        (tmp_path / f"{name}.wav").write_bytes(wave_bytes(100, np.full((70, 3), value, np.float32)))
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    for _ in range(2):  # built, then opened
        found = build_cache(["a.wav", "bad.wav", "b.wav"], tmp_path, settings, tmp_path / "cache")
        assert found.images.shape == (2, 3, 1, 64)
        assert found.bad == ("bad.wav",)
        assert found.images[1, 0, 0, 0] == round((2 / 30 + 1) * 127.5)
