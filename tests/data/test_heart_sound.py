import numpy as np
import pytest
from pydantic import ValidationError

from fedretina.data.modalities.heart_sound import HeartSound, spectrogram_db, spectrogram_picture
from fedretina.data.wav import wave_bytes
from fedretina.errors import DataError
from fedretina.settings.images import HeartSoundSettings


def tone(pitch, rate=2000, seconds=5.0):
    return np.sin(2 * np.pi * pitch * np.arange(round(rate * seconds)) / rate)


def test_the_papers_input_of_101_by_99():
    assert spectrogram_db(tone(100), 2000, HeartSoundSettings()).shape == (101, 99)


@pytest.mark.parametrize("rate", [1000, 2000, 4410])
@pytest.mark.parametrize("pitch", [50, 200, 420])
def test_a_tone_lies_at_its_frequency_whatever_the_rate(rate, pitch):
    levels = spectrogram_db(tone(pitch, rate), rate, HeartSoundSettings())
    assert np.all(np.abs(np.argmax(levels, axis=0)[1:-1] - pitch / 10) <= 1)
    assert levels.max() == 0
    assert levels.min() >= -80


def test_power_falls_by_20_decibels_a_tenth_of_the_amplitude():
    sound = tone(100)
    sound[5000:] *= 0.1
    levels = spectrogram_db(sound, 2000, HeartSoundSettings())
    assert levels[10, 80] - levels[10, 20] == pytest.approx(-20, abs=0.1)


def test_against_sums_of_one_window():
    rng = np.random.default_rng(2)
    sound = rng.normal(size=10_000)
    levels = spectrogram_db(sound, 2000, HeartSoundSettings(range_db=120))
    centred = sound - sound.mean()
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(200) / 200)
    power = {}
    for column in (3, 40):
        part = centred[column * 100 : column * 100 + 200] * hann
        for row in (7, 60):
            wave = np.exp(-2j * np.pi * row * np.arange(200) / 200)
            power[row, column] = abs(np.sum(part * wave)) ** 2
    difference = levels[7, 3] - levels[60, 40]
    assert difference == pytest.approx(10 * np.log10(power[7, 3] / power[60, 40]), abs=1e-6)


def test_the_picture_has_low_tones_below_and_time_to_the_right():
    sound = np.concatenate([tone(100, seconds=2.5), tone(800, seconds=2.5)])
    picture = spectrogram_picture(sound, 2000, HeartSoundSettings())
    assert picture.shape == HeartSoundSettings().shape == (3, 96, 96)
    assert np.array_equal(picture[0], picture[2])
    assert np.argmax(picture[0][:, 20]) > 80
    assert np.argmax(picture[0][:, 76]) < 30


def test_gain_offset_and_what_comes_after_five_seconds_do_not_count():
    sound = tone(80) + 0.1 * np.random.default_rng(1).normal(size=10_000)
    settings = HeartSoundSettings()
    picture = spectrogram_picture(sound, 2000, settings)
    longer = np.concatenate([3000 * sound + 50_000, tone(500)])
    assert np.max(np.abs(spectrogram_picture(longer, 2000, settings).astype(int) - picture)) <= 1


def test_what_is_missing_is_silence():
    picture = spectrogram_picture(tone(100, seconds=2.5), 2000, HeartSoundSettings())
    assert picture[0][:, :40].max() > 200
    assert picture[0][:, 60:].max() == 0
    assert spectrogram_picture(np.zeros(1), 2000, HeartSoundSettings()).max() == 0


def test_files(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(wave_bytes(2000, (1000 * tone(60)).astype(np.int16)))
    run = HeartSound.pipeline(HeartSoundSettings(image_size=32))
    assert run(path).shape == (3, 32, 32)
    assert run(path).dtype == np.uint8
    path.write_bytes(wave_bytes(2000, np.zeros(100, np.int16)))
    with pytest.raises(DataError, match="is silent"):
        run(path)


def test_settings_that_cannot_be():
    with pytest.raises(ValidationError, match=r"hop_s is 0\.2"):
        HeartSoundSettings(hop_s=0.2)
    with pytest.raises(ValidationError):
        HeartSoundSettings(top_hz=50)
    assert len({HeartSoundSettings().digest(), HeartSoundSettings(top_hz=500).digest()}) == 2
