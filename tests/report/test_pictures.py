"""The images of a report: the right ones, in the right order, small."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from PIL import Image

from fedretina.report.site_report import Shown, data_uri, pictures


def shown() -> Shown:
    return Shown(
        answer=np.array([0, 0, 1, 1, 0, 1]),
        labels=np.array([0, 1, 1, 0, 0, 1]),
        probability=np.array([0.9, 0.8, 0.7, 0.6, 0.55, 0.5]),
        uncertainty=np.array([0.3, 0.1, 0.3, 0.2, 0.9, 0.2]),
        files=["c", "b", "a", "f", "e", "d"],
    )


def test_the_choice_and_its_order_ties_by_name():
    images = torch.zeros(6, 3, 8, 8, dtype=torch.uint8)
    found = pictures(images, shown(), ("no", "yes"))
    assert [item["file"] for item in found["surest_right"]] == ["d", "a", "c", "e"]
    assert [item["file"] for item in found["surest_wrong"]] == ["b", "f"]
    assert [item["file"] for item in found["most_doubtful"]] == ["e", "a", "c", "d", "f", "b"]
    assert [item["file"] for item in pictures(images, shown(), ("no", "yes"), each=2)["most_doubtful"]] == ["e", "a"]
    first = found["surest_wrong"][0]
    assert (first["truth"], first["answer"], first["right"]) == ("yes", "no", False)
    assert (first["probability"], first["uncertainty"]) == (0.8, 0.1)


def opened(uri: str) -> Image.Image:
    head, _, body = uri.partition(",")
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(body)))


def test_a_large_image_is_made_smaller_and_a_small_one_is_left():
    large = torch.randint(0, 255, (3, 512, 512), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    assert opened(data_uri(large)).size == (224, 224)
    assert len(data_uri(large)) < 60_000
    assert data_uri(large) == data_uri(large.clone())
    assert opened(data_uri(large[:, :64, :64])).size == (64, 64)


def test_red_stays_red_and_rows_stay_rows():
    image = torch.zeros(3, 32, 64, dtype=torch.uint8)
    image[0, :16] = 255
    picture = opened(data_uri(image)).convert("RGB")
    assert picture.size == (64, 32)
    assert picture.getpixel((60, 2))[0] > 240
    assert max(picture.getpixel((60, 29))) < 15
