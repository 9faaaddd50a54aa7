"""Each member of an ensemble alone: how often it is right, and whether it notices out-of-distribution images."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedretina.evaluation.metrics import auroc
from fedretina.report.text import rounded
from fedretina.settings.evaluation import EvaluationSettings
from fedretina_papers.asked import Asked, Read


def member_figures(asked: Asked, read: Read) -> list[dict[str, Any]]:
    """Figures of each exit, pass or run at a site, the final head last; nothing of one answer alone.

    Args:
        asked: Logits and truth.
        read: How all members are read together; each is read alone in the same way.

    Returns:
        For each member its accuracy, and by set of out-of-distribution images the AUROC of its own u, larger than 0.5
        where these images are less certain than own ones.
    """
    if asked.logits.ndim < 3 or asked.logits.shape[1] < 2 or not asked.labels.size:
        return []
    alone = Read(
        "evidence" if EvaluationSettings.of(read.estimator).evidential else "softmax", read.auc_input, read.tau
    )
    outside = {name: one for name, one in asked.outside.items() if not one.other_site and one.logits.shape[0]}
    found = []
    for member in range(asked.logits.shape[1]):
        own = alone.predict(asked.logits[:, member])
        right = np.argmax(own.probabilities, axis=1) == asked.labels
        away = {name: alone.predict(one.logits[:, member]).uncertainty for name, one in outside.items()}
        noticed = {name: rounded(_auroc(own.uncertainty, u)) for name, u in away.items()}
        found.append({"accuracy": rounded(float(np.mean(right))), "strangers": noticed})
    return found


def _auroc(inside: np.ndarray, outside: np.ndarray) -> float | None:
    is_outside = np.repeat([False, True], [inside.size, outside.size])
    return auroc(np.concatenate([inside, outside]), is_outside)
