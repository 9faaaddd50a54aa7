"""Draw the contact sheets of docs/phantoms.md: `.venv/bin/python docs/draw_phantoms.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, PngImagePlugin

from fedretina.data.phantoms.draw import draw_cases
from fedretina.data.phantoms.hospital import Case, Modality, phantom_hospital

FOLDER = Path(__file__).parent / "pictures"
SIDE = 128
# Rows of a sheet: the site and the class of each picture from left to right.
SHEETS: dict[Modality, tuple[tuple[tuple[str, int], ...], ...]] = {
    "fundus": (
        tuple(("site-1", grade) for grade in range(5)),
        tuple(("site-3", grade) for grade in (0, 2, 3, 4, 5)),
    ),
    "oct": ((*(("site-2", disease) for disease in range(4)), ("site-4", 3)),),
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
        small = picture.quantize(128) if modality == "fundus" else picture.convert("L").quantize(32)
        small.save(FOLDER / f"phantoms_{modality}.png", optimize=True, pnginfo=text)


if __name__ == "__main__":
    main()
