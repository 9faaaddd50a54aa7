"""What a site adds to a federated ridge head: sums over its training images, and nothing of a single image.

Sums of sites add up to the sums of all their images, so the server needs the total alone: it can be formed under
encryption, and whoever has it solves for the head that training on all images together would give (`ridge`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedretina.errors import DataError

_NONE = 1e-3
"""Of fewer images than this a class has none."""


@dataclass(frozen=True)
class Totals:
    """The normal equations of a ridge regression on centred one-hot labels.

    Attributes:
        gram: sum of w phi phi^T, [d, d].
        cross: sum of w phi (y - prior)^T, [d, C].
        power: sum of w |y - prior|^2.
        images: sum of w.
        prior: Weighted frequency of each class, [C]; sums to one.
    """

    gram: Tensor
    cross: Tensor
    power: float
    images: float
    prior: Tensor


@dataclass(frozen=True)
class Sums:
    """Sums over images of their features, by class; all float64.

    An image whose grade stands for several classes counts as so many images, each with its share.

    Attributes:
        counts: Images by class, [C].
        first: Sum of features by class, [C, d]; it is what regression calls the cross products of features and labels.
        second: Sum of phi phi^T: [C, d, d] by class, or [1, d, d] of all classes together, a C-th of the size, where
            no class is to be weighed.
    """

    counts: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, features: Tensor, shares: Tensor, by_class: bool) -> Sums:
        """Sum over images.

        Args:
            features: [n, d], the constant column included.
            shares: [n, C], from 0 to 1: how much of each class an image stands for; a row of zeros adds nothing.
            by_class: Whether second moments are kept by class.

        Raises:
            DataError: A feature is not finite, or shapes or shares do not fit.
        """
        if features.ndim != 2 or shares.ndim != 2 or len(features) != len(shares):
            raise DataError(
                f"features are [images, d] and shares [images, classes] of the same images, got "
                f"{list(features.shape)} and {list(shares.shape)}."
            )
        if not bool(torch.isfinite(features).all()):
            raise DataError("a feature is not finite: the encoder's weights or its input are damaged.")
        if bool((shares < 0).any()) or bool((shares.sum(1) > 1 + 1e-9).any()):
            raise DataError("the classes' shares of an image lie between 0 and 1 and sum to at most 1.")
        phi, share = features.double(), shares.double()
        first = share.T @ phi
        if by_class:
            second = torch.stack([phi.T @ (column.unsqueeze(1) * phi) for column in share.T])
        else:
            second = (phi.T @ (share.sum(1, keepdim=True) * phi)).unsqueeze(0)
        return cls(share.sum(0), first, second)

    @property
    def by_class(self) -> bool:
        """Whether second moments are kept by class."""
        return len(self.second) == len(self.counts) and len(self.counts) > 1

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.counts + other.counts, self.first + other.first, self.second + other.second)

    def __sub__(self, other: Sums) -> Sums:
        return Sums(self.counts - other.counts, self.first - other.first, self.second - other.second)

    def packed(self) -> dict[str, Tensor]:
        """The tensors of a message, float64; of each symmetric matrix the upper triangle."""
        rows, columns = torch.triu_indices(self.second.shape[1], self.second.shape[2])
        return {"counts": self.counts, "first": self.first, "second": self.second[:, rows, columns]}

    @classmethod
    def unpacked(cls, tensors: Mapping[str, Tensor]) -> Sums:
        """What `packed` gave.

        Raises:
            DataError: A tensor is missing, is not finite, has another shape, or counts are negative.
        """
        try:
            counts, first, triangle = (tensors[key].double() for key in ("counts", "first", "second"))
        except KeyError as error:
            raise DataError("sums are counts, first and second moments; one of them is missing.") from error
        if counts.ndim != 1 or first.ndim != 2 or triangle.ndim != 2:
            raise DataError("sums are counts [C], first moments [C, d] and second moments [1 or C, d (d + 1) / 2].")
        classes, d = first.shape
        if len(counts) != classes or triangle.shape[1] != d * (d + 1) // 2 or triangle.shape[0] not in (1, classes):
            raise DataError(
                f"sums do not fit each other: counts {list(counts.shape)}, first {list(first.shape)}, second "
                f"{list(triangle.shape)}."
            )
        finite = all(bool(torch.isfinite(one).all()) for one in (counts, first, triangle))
        if not finite or bool((counts < -_NONE).any()):
            raise DataError("sums are finite, and counts are not negative.")
        # Encryption leaves a class without images next to none, by which nothing is to be divided.
        counts = counts.where(counts > _NONE, torch.zeros_like(counts))
        rows, columns = torch.triu_indices(d, d)
        second = torch.zeros(len(triangle), d, d, dtype=torch.float64)
        second[:, rows, columns] = triangle
        second[:, columns, rows] = triangle
        return cls(counts, first, second)

    def totals(self, weights: Tensor | None = None) -> Totals:
        """The normal equations that these sums stand for.

        Args:
            weights: What an image of each class counts, [C], not negative; without it every image counts 1. Only sums
                by class can be weighed.

        Raises:
            DataError: No image, or weights where the second moments are not kept by class.
        """
        if weights is None:
            each, gram = torch.ones_like(self.counts), self.second.sum(0)
        elif not self.by_class:
            raise DataError("classes can only be weighed where second moments are summed by class.")
        else:
            each, gram = weights.double(), torch.einsum("c,cij->ij", weights.double(), self.second)
        images = float((each * self.counts).sum())
        if images <= 0:
            raise DataError("there is no image to solve a head from.")
        prior = each * self.counts / images
        weighed = each.unsqueeze(1) * self.first  # [C, d]
        cross = weighed.T - weighed.sum(0).unsqueeze(1) * prior  # sum of w phi (e_c - prior)^T
        return Totals(gram, cross, images * (1 - float((prior**2).sum())), images, prior)

    def balance(self) -> Tensor:
        """Weights under which every class that occurs counts alike, [C]; they keep the number of images."""
        there = self.counts > 0
        weights = torch.zeros_like(self.counts)
        weights[there] = self.counts.sum() / (there.sum() * self.counts[there])
        return weights


def total(parts: Iterable[tuple[str, Sums]]) -> Sums:
    """The sums of all sites, added in the order of their names, so that the order of arrival changes no bit.

    Raises:
        DataError: No site, or sites of different shapes.
    """
    ordered = sorted(parts, key=lambda part: part[0])
    if not ordered:
        raise DataError("there are no sums to add.")
    whole = ordered[0][1]
    for site, part in ordered[1:]:
        if part.first.shape != whole.first.shape or part.second.shape != whole.second.shape:
            raise DataError(f"the sums of {site} have another shape than those of {ordered[0][0]}.")
        whole = whole + part
    return whole
