import cv2
import numpy as np
import pytest

from fedretina.data.check.pixels import check_images, measure, measure_files
from fedretina.data.check.rows import Image
from fedretina.data.check.rules import Findings
from fedretina.errors import DataError
from little_eyes import eye


def codes(images, image_size=128, modality="fundus"):
    findings = Findings()
    names = [Image("", f"{at}.png", 0, "p", "train") for at in range(len(images))]
    check_images(names, [measure(image) for image in images], image_size, findings, modality)
    return {one.code: [words.split()[0] for words in one.where] for one in findings}


def planted(name):
    image = eye(7)
    faults = {
        "image_blank": lambda: np.full_like(image, 90),
        "image_grey": lambda: np.repeat(image[..., 1:2], 3, axis=2),
        "channels_swapped": lambda: image[..., ::-1],
        "image_dark": lambda: (image * 0.18).astype(np.uint8),
        "image_overexposed": lambda: np.clip(image.astype(int) * 3, 0, 255).astype(np.uint8),
        "image_small": lambda: eye(7, 100),
        "size_odd": lambda: cv2.resize(image, (960, 960)),
        "aspect_odd": lambda: eye(7, 160, 400),
        "no_field_of_view": lambda: cv2.resize(image[50:110, 50:110], (160, 160)),
    }
    return np.ascontiguousarray(faults[name]())


FAULTS = (
    "image_blank",
    "image_grey",
    "channels_swapped",
    "image_dark",
    "image_overexposed",
    "image_small",
    "size_odd",
    "aspect_odd",
    "no_field_of_view",
)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_no_other_image_is_called_odd(fault):
    images = [eye(seed) for seed in range(6)]
    found = codes([*images[:3], planted(fault), *images[3:]])
    assert found.pop(fault) == ["3.png"]
    # A blank image has no field of view to be found either, but one name for it is enough.
    assert found == {}


def test_half_an_eye_burnt_out():
    image = eye(3)
    image[40:120, 20:80] = 255
    assert codes([eye(1), eye(2), image]) == {"image_overexposed": ["2.png"]}


def test_oct_scans_are_grey_and_fill_the_page():
    rng = np.random.default_rng(0)
    scan = cv2.GaussianBlur(rng.integers(40, 90, (160, 160), dtype=np.uint8), (0, 0), 2)
    scan[60:80] = 200
    scan[140:] = 255
    scans = [np.repeat(scan[..., None], 3, axis=2)] * 2
    assert set(codes(scans)) == {"no_field_of_view", "image_grey"}
    assert codes(scans, modality="oct") == {}
    assert codes([*scans, np.zeros_like(scans[0])], modality="oct") == {"image_blank": ["2.png"]}


def test_clean_images_are_not_odd():
    assert codes([eye(seed, size) for seed in range(4) for size in (150, 200, 300)]) == {}


def test_a_cropped_retina_counts_as_large_as_its_box():
    # 320 pixels wide, but the retina in it has about 147.
    assert codes([eye(seed, 160, 320) for seed in range(3)], image_size=256) == {
        "image_small": ["0.png", "1.png", "2.png"]
    }


def shallow(image, bits=12):
    """The image with so many bits in 16, which nobody has scaled."""
    return np.ascontiguousarray(image.astype(np.uint16) * 257 >> (16 - bits))


@pytest.mark.parametrize("bits", [10, 12, 13])
def test_pictures_of_fewer_bits_in_16_are_called_so_and_not_dark_or_blank(bits):
    deep = [eye(seed).astype(np.uint16) * 257 for seed in range(3)]
    assert codes(deep) == {}
    assert codes([shallow(eye(seed), bits) for seed in range(3)]) == {"bit_depth_odd": ["0.png", "1.png", "2.png"]}
    # One among others is dark, and 8 bits say nothing of it.
    assert set(codes([*deep, shallow(eye(4))])) <= {"image_dark", "image_blank", "image_grey", "no_field_of_view"}
    assert codes([eye(1), eye(2), eye(3), shallow(eye(4))]) == {"bit_depth_odd": ["3.png"]}


def test_no_images():
    assert codes([]) == {}


def test_all_blank():
    assert codes([np.zeros((160, 160, 3), np.uint8)]) == {"image_blank": ["0.png"]}


@pytest.mark.parametrize("shape", [(1, 1), (1, 400), (3, 3), (9, 7)])
def test_the_smallest_images_measure(shape):
    facts = measure(np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8))
    assert (facts.height, facts.width) == shape
    assert np.isfinite(facts.detail).all()


def test_measures_of_a_plain_image():
    image = np.zeros((80, 120, 3), np.uint8)
    image[:] = (200, 100, 50)
    facts = measure(image)
    assert facts.retina is None
    assert facts.colour == (200.0, 100.0, 50.0)
    assert facts.luminance == pytest.approx(0.299 * 200 + 0.587 * 100 + 0.114 * 50)
    assert facts.chroma == pytest.approx(200 - 350 / 3, rel=1e-5)
    assert facts.burnt == 0
    assert not facts.detail.any()


def test_the_digest_is_of_pixels_and_shape():
    image = eye(1)
    assert measure(image).digest == measure(image.copy()).digest
    other = image.copy()
    other[0, 0, 0] ^= 1
    digests = {measure(one).digest for one in (image, other, image.reshape(80, 320, 3))}
    assert len(digests) == 3


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_files_come_in_order_and_a_bad_one_gives_its_error(tmp_path, workers):
    for seed in range(14):
        cv2.imwrite(str(tmp_path / f"{seed}.png"), eye(seed, 40)[..., ::-1])
    (tmp_path / "9.png").write_bytes(b"no image")
    ticks = []
    files = [f"{seed}.png" for seed in (*range(14), 99)]
    found = list(measure_files(tmp_path, files, workers, lambda: ticks.append(1)))
    assert [isinstance(one, DataError) for one in found] == [at in (9, 14) for at in range(15)]
    assert found[5].digest == measure(eye(5, 40)).digest
    assert len(ticks) == 15


def test_wide_scans_are_usual_and_coloured_ones_are_not():
    scan = np.repeat(np.random.default_rng(1).integers(20, 90, (100, 350, 1), dtype=np.uint8), 3, axis=2)
    assert "aspect_odd" in codes([scan])
    assert codes([scan], modality="oct") == {}
    coloured = scan.copy()
    coloured[..., 0] += 80
    assert codes([scan, coloured], modality="oct") == {"image_coloured": ["1.png"]}
