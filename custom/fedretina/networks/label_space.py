"""A site's own grades as sums over the classes of a head that all sites share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedretina.errors import TrainingError


class LabelSpace(nn.Module):
    """Turns logits over shared classes into logits over a site's grades.

    A grade may stand for several shared classes (AMD for drusen and CNV): its probability is the sum of theirs, so its
    logit is the log of the sum of their exponentials. Classes in no grade are left out: the softmax runs over what the
    site can label, so that an image is not held against a class that nobody at the site could have named, and no
    gradient reaches such a class.

    It has no state, so it is no part of what is stored or sent.

    Args:
        cover: For each grade of the site the shared classes that it stands for (`GradingScheme.cover`).
    """

    def __init__(self, cover: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.cover = tuple(tuple(members) for members in cover)

    @property
    def merges(self) -> bool:
        """Whether a grade stands for more than one class."""
        return any(len(members) > 1 for members in self.cover)

    def forward(self, logits: Tensor) -> Tensor:
        """Return logits [B, K_i] of the site's grades from logits [B, K] of the shared classes."""
        columns = [
            logits[:, members[0]] if len(members) == 1 else logits[:, list(members)].logsumexp(1)
            for members in self.cover
        ]
        return torch.stack(columns, dim=1)


def label_space(cover: Sequence[Sequence[int]], width: int, evidence: bool) -> LabelSpace | None:
    """The label space of a site, or None where its grades are the shared classes in their order.

    Args:
        cover: For each grade of the site the shared classes that it stands for.
        width: How many shared classes there are.
        evidence: Whether the objective reads logits as evidence. Evidence of several classes adds up in another way
            than probability, and no paper says how, so a grade must then stand for one class.

    Raises:
        TrainingError: A grade stands for several classes, and the objective is evidential.
    """
    if [tuple(members) for members in cover] == [(number,) for number in range(width)]:
        return None
    space = LabelSpace(cover)
    if evidence and space.merges:
        raise TrainingError(
            "a grade of this site stands for several classes of the shared head, which evidential objectives cannot "
            "sum: use cross entropy, or let the head be personal (exchange.personal: head)."
        )
    return space
