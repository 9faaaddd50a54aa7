"""Draw the pictures of phantoms.md, oct_scans.md and other_modalities.md: `.venv/bin/python docs/draw_phantoms.py`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image, PngImagePlugin

from fedretina.data.modalities.oct import Oct
from fedretina.data.phantoms.canvas import stamp
from fedretina.data.phantoms.draw import cases_of, draw_cases, phantom_samples
from fedretina.data.phantoms.hospital import phantom_hospital
from fedretina.data.phantoms.kind import Case
from fedretina.settings.images import OctSettings, image_settings

FOLDER = Path(__file__).parent / "pictures"
SIDE = 128
# Rows of a sheet: the site and the class of each picture from left to right.
SHEETS: dict[str, tuple[tuple[tuple[str, int], ...], ...]] = {
    "fundus": (
        tuple(("site-1", grade) for grade in range(5)),
        tuple(("site-3", grade) for grade in (0, 2, 3, 4, 5)),
    ),
    "oct": ((*(("site-2", disease) for disease in range(4)), ("site-4", 3)),),
    "dermoscopy": tuple(tuple((site, diagnosis) for diagnosis in range(8)) for site in ("site-1", "site-3")),
}


def main() -> None:
    """Write the sheets in few colours, so that they stay small."""
    FOLDER.mkdir(exist_ok=True)
    text = PngImagePlugin.PngInfo()
    text.add_text("Synthetic", "fedretina phantom, not a patient")
    for modality, sheet in SHEETS.items():
        rows = []
        for row in sheet:
            tiles: list[np.ndarray] = []
            for number, (site, label) in enumerate(row):
                case = Case(label, label, number, number % 2 == 1)
                hospital = phantom_hospital(site, modality=modality)
                tiles += draw_cases(hospital, [case], SIDE, (2, "contact sheet", site))
            rows.append(np.hstack(tiles))
        picture = Image.fromarray(np.vstack(rows))
        small = picture.convert("L").quantize(32) if modality == "oct" else picture.quantize(128)
        small.save(FOLDER / f"phantoms_{modality}.png", optimize=True, pnginfo=text)
    draw_margins(text)
    draw_hearts(text)


def draw_hearts(text: PngImagePlugin.PngInfo) -> None:
    """Spectrograms as a network sees them, at two sites: three normal hearts and three with a murmur."""
    settings = image_settings("heart_sound", SIDE)
    rows = []
    for site in ("site-1", "site-5"):
        hospital = phantom_hospital(site, modality="heart_sound")
        samples = phantom_samples(hospital, cases_of([0, 0, 0, 1, 1, 1]), settings, (2, "contact sheet", site))
        rows.append(np.hstack(list(samples[:, 0].numpy())))
    sheet = np.stack([np.vstack(rows)] * 3, axis=-1)
    stamp(sheet)  # a recording bears its mark in its file, which a picture of it does not show
    Image.fromarray(sheet).quantize(32).save(FOLDER / "phantoms_heart_sound.png", optimize=True, pnginfo=text)


def draw_margins(text: PngImagePlugin.PngInfo, count: int = 6) -> None:
    """Scans of a hospital with wide white margins: above as drawn, below as a network sees them.

    A margin at the lower left would be cut in two by the word that marks a phantom, which no scanner writes.
    """
    hospital, seed = phantom_hospital("site-2", modality="oct"), (2, "margins")
    cases = [Case(number % 4, number % 4, number, number % 2 == 1) for number in range(40)]
    scans = draw_cases(hospital, cases, 2 * SIDE, seed)
    whole = [scan for scan in scans if not np.any(scan[SIDE:, : SIDE // 2] > 250)]
    drawn = sorted(whole, key=lambda scan: -float(np.mean(scan > 235)))[:count]
    pipeline = Oct.pipeline(OctSettings(image_size=SIDE))
    rows: list[list[np.ndarray]] = [[], []]
    with TemporaryDirectory() as folder:
        for scan in drawn:
            path = Path(folder) / "scan.png"
            Image.fromarray(scan).save(path)
            rows[0].append(np.asarray(Image.fromarray(scan).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)))
            rows[1].append(pipeline(path)[0])
    picture = Image.fromarray(np.vstack([np.hstack(row) for row in rows]))
    picture.quantize(32).save(FOLDER / "oct_margins.png", optimize=True, pnginfo=text)


if __name__ == "__main__":
    main()
