import io
import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image

from fedretina.data.decode import decode_image, read_pixels
from fedretina.errors import DataError, SeveralPagesError

RNG = np.random.default_rng(0)
PICTURE = cv2.resize(RNG.integers(0, 256, (12, 16, 3), dtype=np.uint8), (80, 60))  # RGB, 60 x 80


def saved(tmp_path, name, pixels, *flags):
    path = tmp_path / name
    cv2.imwrite(str(path), pixels, flags)
    return path


def test_png_is_exact_and_rgb(tmp_path):
    path = saved(tmp_path, "ä b.png", PICTURE[..., ::-1])
    read = decode_image(path)
    assert read.dtype == np.uint8
    assert np.array_equal(read, PICTURE)


def test_grey_alpha_and_sixteen_bits(tmp_path):
    grey = PICTURE[..., 0]
    assert np.array_equal(decode_image(saved(tmp_path, "g.png", grey)), np.repeat(grey[..., None], 3, axis=2))
    alpha = np.dstack([PICTURE[..., ::-1], RNG.integers(0, 256, grey.shape, dtype=np.uint8)])
    assert np.array_equal(decode_image(saved(tmp_path, "a.png", alpha)), PICTURE)
    deep = PICTURE[..., ::-1].astype(np.uint16) * 257
    assert np.array_equal(decode_image(saved(tmp_path, "d.png", deep)), PICTURE)
    assert np.array_equal(decode_image(saved(tmp_path, "d.tif", deep)), PICTURE)
    assert decode_image(saved(tmp_path, "w.png", np.full((4, 4), 65535, np.uint16))).min() == 255


@pytest.mark.parametrize("progressive", [0, 1])
@pytest.mark.parametrize("keep", [0.02, 0.3, 0.6, 0.97, -2, -1])
def test_every_cut_of_a_jpeg_is_found(tmp_path, keep, progressive):
    path = saved(tmp_path, "j.jpg", PICTURE, cv2.IMWRITE_JPEG_PROGRESSIVE, progressive)
    data = path.read_bytes()
    assert decode_image(path).shape == (60, 80, 3)
    path.write_bytes(data[: keep if keep < 0 else int(keep * len(data))])
    with pytest.raises(DataError, match=r"j\.jpg"):
        decode_image(path)


def test_a_thumbnail_does_not_hide_a_cut_and_a_trailer_is_no_fault(tmp_path):
    path = saved(tmp_path, "j.jpg", PICTURE)
    data = path.read_bytes()
    thumbnail = cv2.imencode(".jpg", PICTURE[:16, :16])[1].tobytes()
    segment = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    path.write_bytes(data[:2] + segment + data[2:] + b"camera trailer")
    assert decode_image(path).shape == (60, 80, 3)
    path.write_bytes((data[:2] + segment + data[2:])[:-200])
    with pytest.raises(DataError, match="cut off"):
        decode_image(path)


def test_a_restart_interval_is_no_end(tmp_path):
    path = saved(tmp_path, "r.jpg", PICTURE, cv2.IMWRITE_JPEG_RST_INTERVAL, 1)
    assert b"\xff\xd0" in path.read_bytes()
    assert decode_image(path).shape == (60, 80, 3)


@pytest.mark.parametrize("keep", [0, 1], ids=["gone", "zeroed"])
def test_damage_in_the_middle_of_a_jpeg_is_not_noticed_as_the_page_for_hospitals_says(tmp_path, keep):
    path = saved(tmp_path, "j.jpg", PICTURE)
    data = path.read_bytes()
    whole, middle, size = decode_image(path), len(data) * 2 // 3, len(data) // 10
    path.write_bytes(data[:middle] + bytes(keep * size) + data[middle + size :])
    assert not np.array_equal(decode_image(path), whole)


def test_png_damage(tmp_path):
    path = saved(tmp_path, "p.png", PICTURE)
    data = path.read_bytes()
    for broken in (data[: len(data) // 2], data[:-4], data[:200] + bytes([data[200] ^ 1]) + data[201:]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match="PNG"):
            decode_image(path)


def test_what_is_no_image(tmp_path):
    path = tmp_path / "x.jpg"
    for data, words in ((b"", "empty"), (b"hello", "no image"), (b"\xff\xd8", "cut off")):
        path.write_bytes(data)
        with pytest.raises(DataError, match=words):
            decode_image(path)
    for missing in (tmp_path / "none.jpg", tmp_path):
        with pytest.raises(DataError) as error:
            decode_image(missing)
        assert isinstance(error.value.__cause__, OSError)
    floats = saved(tmp_path, "f.tif", np.zeros((8, 8, 3), np.float32))
    with pytest.raises(DataError, match="float32"):
        decode_image(floats)


def test_orientation_is_applied(tmp_path):
    tags = Image.Exif()
    tags[0x0112] = 6
    buffer = io.BytesIO()
    Image.fromarray(PICTURE).save(buffer, "JPEG", exif=tags)
    (tmp_path / "o.jpg").write_bytes(buffer.getvalue())
    assert decode_image(tmp_path / "o.jpg").shape == (80, 60, 3)


def tiff(pixels, order="<", deflated=False, tile=0, rows=0, further=b"", palette=None):
    """A TIFF file of one page, grey or RGB, 8 or 16 bits, in strips of `rows` or in tiles; `further` are more IFDs."""
    height, width = pixels.shape[:2]
    each = pixels.dtype.itemsize * 8
    samples = 1 if pixels.ndim == 2 else pixels.shape[2]
    stored = pixels.astype(pixels.dtype.newbyteorder(order))
    if tile:
        padded = np.pad(stored, ((0, -height % tile), (0, -width % tile)) + ((0, 0),) * (pixels.ndim - 2))
        parts = [
            np.ascontiguousarray(padded[y : y + tile, x : x + tile]).tobytes()
            for y in range(0, height, tile)
            for x in range(0, width, tile)
        ]
    else:
        rows = rows or height
        parts = [stored[y : y + rows].tobytes() for y in range(0, height, rows)]
    parts = [zlib.compress(part) for part in parts] if deflated else parts
    data, places = b"", []
    for part in parts:
        places.append(8 + len(data))
        data += part + b"\0" * (len(part) % 2)
    kind = 3 if palette is not None else 1 if samples == 1 else 2
    tags = {
        256: [width],
        257: [height],
        258: [each] * samples,
        259: [8 if deflated else 1],
        262: [kind],
        277: [samples],
    }
    where = {322: [tile], 323: [tile], 324: places} if tile else {273: places, 278: [rows]}
    tags |= where | {325 if tile else 279: [len(part) for part in parts]}
    if palette is not None:
        tags[320] = [int(value) * 257 for value in palette.T.ravel()]
    entries, extra = b"", b""
    at = 8 + len(data)
    after = at + 2 + 12 * len(tags) + 4
    for tag, values in sorted(tags.items()):
        # Offsets and lengths are 32 bits wide, all else 16.
        wide = tag in (273, 279, 324, 325)
        packed = struct.pack(f"{order}{len(values)}{'I' if wide else 'H'}", *values)
        if len(packed) > 4:
            place = struct.pack(f"{order}I", after + len(extra))
            extra += packed + b"\0" * (len(packed) % 2)
            packed = place
        entries += struct.pack(f"{order}HHI", tag, 4 if wide else 3, len(values)) + packed.ljust(4, b"\0")
    onward = after + len(extra) if further else 0
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, at)
    return (
        head + data + struct.pack(f"{order}H", len(tags)) + entries + struct.pack(f"{order}I", onward) + extra + further
    )


def pillow(pixels, kind, **words):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **words)
    return buffer.getvalue()


GREY = PICTURE[..., 0]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("deflated", [False, True])
@pytest.mark.parametrize("layout", [{}, {"rows": 7}, {"tile": 32}])
@pytest.mark.parametrize("pixels", [GREY, PICTURE, GREY.astype(np.uint16) * 257, PICTURE.astype(np.uint16) * 257])
def test_good_tiff_files_keep_their_pixels(tmp_path, pixels, layout, deflated, order):
    (tmp_path / "t.tif").write_bytes(tiff(pixels, order, deflated, **layout))
    assert np.array_equal(read_pixels(tmp_path / "t.tif"), pixels if pixels.ndim == 3 else np.dstack([pixels] * 3))
    assert np.array_equal(decode_image(tmp_path / "t.tif"), PICTURE if pixels.ndim == 3 else np.dstack([GREY] * 3))


@pytest.mark.parametrize("packing", ["tiff_lzw", "packbits", "tiff_adobe_deflate", "jpeg"])
def test_other_packings_and_palettes_keep_theirs(tmp_path, packing):
    for data in (pillow(PICTURE, "TIFF", compression=packing), pillow(GREY, "TIFF", compression=packing)):
        (tmp_path / "t.tif").write_bytes(data)
        before = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert np.array_equal(decode_image(tmp_path / "t.tif"), before[..., ::-1])
    colours = RNG.integers(0, 256, (256, 3), dtype=np.uint8)
    (tmp_path / "p.tif").write_bytes(tiff(GREY, palette=colours))
    assert np.array_equal(decode_image(tmp_path / "p.tif"), colours[GREY])


def strip(data):
    """Where the first strip or tile of a TIFF file lies."""
    with Image.open(io.BytesIO(data)) as image:
        tags = image.tag_v2
        return tags.get(273, tags.get(324))[0], tags.get(279, tags.get(325))[0]


@pytest.mark.attack(
    "an accident",
    "a TIFF file is damaged inside, cut off or holds several pictures",
    "it is refused and named, and trains and answers nothing",
)
@pytest.mark.parametrize(
    "data",
    [
        pillow(PICTURE, "TIFF", compression="tiff_lzw"),
        pillow(GREY, "TIFF", compression="tiff_lzw"),
        cv2.imencode(".tif", PICTURE.astype(np.uint16) * 257, [cv2.IMWRITE_TIFF_COMPRESSION, 5])[1].tobytes(),
        tiff(PICTURE, deflated=True),
        tiff(GREY, deflated=True, tile=32),
        tiff(PICTURE.astype(np.uint16) * 257, ">", deflated=True, rows=60),
        pillow(PICTURE, "TIFF"),  # zeros where there is neither a code nor a checksum are no damage
    ],
    ids=["lzw", "lzw grey", "lzw 16", "deflate", "deflate tiles", "deflate 16", "none"],
)
def test_tiff_damage(tmp_path, data, request):
    packed = "none" not in request.node.name
    path = tmp_path / "t.tif"
    path.write_bytes(data)
    assert decode_image(path).shape == (60, 80, 3)
    begin, size = strip(data)
    zeroed = data[: begin + size // 3] + bytes(size // 3) + data[begin + 2 * (size // 3) :]
    for broken in (zeroed, data[: len(data) // 2]) if packed else (data[: len(data) // 2],):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"t\.tif is "):
            decode_image(path)


def directory(**tags):
    """A page of a TIFF file that shows nothing, for the end of another."""
    entries = {256: 1, 257: 1} | {int(tag[1:]): value for tag, value in tags.items()}
    words = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(entries.items())]
    return struct.pack("<H", len(words)) + b"".join(words) + struct.pack("<I", 0)


def test_pages(tmp_path):
    path = tmp_path / "t.tif"
    others = [Image.fromarray(PICTURE[::-1].copy()), Image.fromarray(GREY)]
    several = {
        "tiff": pillow(PICTURE, "TIFF", save_all=True, append_images=others),
        "page of a kind that Pillow does not know": tiff(PICTURE, further=directory()),
        "gif": pillow(PICTURE, "GIF", save_all=True, append_images=others),
        "webp": pillow(PICTURE, "WEBP", save_all=True, append_images=others),
        "png": pillow(PICTURE, "PNG", save_all=True, append_images=others),
    }
    for data in several.values():
        path.write_bytes(data)
        with pytest.raises(SeveralPagesError, match="more than one picture: export each"):
            decode_image(path)
    for tags in ({"t254": 1}, {"t254": 4}, {"t255": 2}):  # a smaller copy, a mask, and the same in old files
        path.write_bytes(tiff(PICTURE, further=directory(**tags)))
        assert np.array_equal(decode_image(path), PICTURE)
    for kind in ("GIF", "WEBP", "PNG"):
        path.write_bytes(pillow(PICTURE, kind))
        assert decode_image(path).shape == PICTURE.shape
    path.write_bytes(tiff(PICTURE, further=b"\0"))
    with pytest.raises(DataError, match="list of pages leads nowhere"):
        decode_image(path)
