"""Small photographs of made-up eyes for the data check: each seed another eye, each with a fault if asked."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import yaml

GRADES = ("no_dr", "mild", "moderate", "severe", "proliferative")


def eye(seed: int, size: int = 160, wide: int | None = None) -> np.ndarray:
    """A retina, uint8 [size, wide, 3], RGB: red, with vessels of its own, on black."""
    rng = np.random.default_rng(seed)
    detail = sum(
        cv2.GaussianBlur(rng.normal(size=(size, size)), (0, 0), size / share) * size / share for share in (60, 30, 15)
    )
    y, x = np.mgrid[:size, :size] - (size - 1) / 2
    light = 110 - 20 * (x**2 + y**2) / (size / 2) ** 2 + 20 * detail
    image = np.clip(light[..., None] * np.array([1.4, 0.7, 0.3]), 5, 240).astype(np.uint8)
    image[x**2 + y**2 > (0.46 * size) ** 2] = 0
    if wide is None:
        return image
    page = np.zeros((size, wide, 3), np.uint8)
    page[:, (wide - size) // 2 : (wide - size) // 2 + size] = image
    return page


def save(path: Path, image: np.ndarray, quality: int = 95) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])


def write_site(folder: Path, each: tuple[int, int, int] = (2, 1, 5)) -> list[list[str]]:
    """A clean site: `each` images of each grade in train, val and test; returns its rows."""
    rows = []
    for split, count in zip(("train", "val", "test"), each, strict=True):
        for label in range(len(GRADES)):
            for number in range(count):
                name = f"{split}-{label}-{number}"
                seed = 1000 * ("train", "val", "test").index(split) + 100 * label + number
                save(folder / "images" / f"{name}.png", eye(seed))
                rows.append([f"{name}.png", str(label), f"patient {number % 2} {name}", split])
    # Two eyes of one patient, so that patients are known.
    rows[1][2] = rows[0][2]
    write_rows(folder, rows)
    return rows


def write_rows(folder: Path, rows: list[list[str]], **settings) -> Path:
    """Write the manifest and the site file; returns the site file."""
    lines = ["file,label,patient,split", *(",".join(row) for row in rows)]
    (folder / "manifest.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = {"data": {"manifest": "manifest.csv", "images": "images", "scheme": "icdr5", **settings}}
    (folder / "site.yaml").write_text(yaml.safe_dump(words), encoding="utf-8")
    return folder / "site.yaml"
