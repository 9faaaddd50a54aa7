"""Which images a site's report shows, and the images themselves as small data URIs."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

EACH = 8
LONGEST_SIDE = 224
_QUALITY = 82


class Shown(NamedTuple):
    """What stands under an image.

    Attributes:
        answer: Class answered [N].
        labels: True class [N].
        probability: Probability of the answered class [N].
        uncertainty: u [N].
        files: Name of each image at the site.
    """

    answer: NDArray[np.intp]
    labels: NDArray[np.int64]
    probability: NDArray[np.float64]
    uncertainty: NDArray[np.float64]
    files: Sequence[str]


def pictures(images: Tensor, shown: Shown, grades: Sequence[str], each: int = EACH) -> dict[str, list[dict[str, Any]]]:
    """The surest right, the surest wrong and the most doubtful images of a split.

    Of equal u the file that comes first by name is taken, so the choice depends on nothing else.

    Args:
        images: uint8 [N, 3, S, S], as the model saw them.
        shown: What stands under each.
        grades: Names of the classes.
        each: How many of a kind.

    Returns:
        Lists by kind; an image is a data URI, JPEG, at most 224 pixels wide. They show patients: nothing of this
        leaves the site.
    """
    right = shown.answer == shown.labels
    order = np.lexsort((np.asarray(shown.files, dtype=np.str_), shown.uncertainty))
    doubtful = np.lexsort((np.asarray(shown.files, dtype=np.str_), -shown.uncertainty))
    chosen = {
        "surest_right": order[right[order]],
        "surest_wrong": order[~right[order]],
        "most_doubtful": doubtful,
    }
    found: dict[str, list[dict[str, Any]]] = {}
    uris: dict[int, str] = {}
    for kind, places in chosen.items():
        found[kind] = []
        for at in places[:each].tolist():
            if at not in uris:
                uris[at] = data_uri(images[at])
            found[kind].append(
                {
                    "file": shown.files[at],
                    "truth": grades[int(shown.labels[at])],
                    "answer": grades[int(shown.answer[at])],
                    "right": bool(right[at]),
                    "probability": round(float(shown.probability[at]), 4),
                    "uncertainty": round(float(shown.uncertainty[at]), 4),
                    "image": uris[at],
                }
            )
    return found


def data_uri(image: Tensor) -> str:
    """One uint8 image [3, S, S] as a JPEG in a data URI, made smaller where it is larger than 224 pixels."""
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).cpu().numpy()), mode="RGB")
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, format="JPEG", quality=_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
