"""Sites whose images lie in one place: what a federation is measured against, where the grades agree."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from fedretina.data.site_data import SiteData, Split


class Pool(NamedTuple):
    """Sites that share a grading scheme, taken as one.

    Attributes:
        data: All their images; the name of the only member where there is one.
        members: Their names, in alphabetical order.
    """

    data: SiteData
    members: tuple[str, ...]


def pools(sites: Mapping[str, SiteData]) -> list[Pool]:
    """Put sites with the very same grades together; a site whose grades are its own stays alone.

    Grades are the same when their names and order are, whatever words stand for them in a site's files: grade 3 of one
    scheme is not grade 3 of another, and labels of different schemes are never mixed. Splits keep their sides: an image
    that a site tests on is tested on in the pool.

    Args:
        sites: Data by the site's name.

    Returns:
        The pools, in the order of their first members.
    """
    alike: dict[tuple[tuple[str, ...], str | None], list[str]] = {}
    for name in sorted(sites):
        scheme = sites[name].scheme
        alike.setdefault((scheme.grades, scheme.ungradable), []).append(name)
    found = []
    for names in alike.values():
        data = sites[names[0]] if len(names) == 1 else _joined(f"pool-of-{names[0]}", [sites[name] for name in names])
        found.append(Pool(data, tuple(names)))
    return found


def _joined(name: str, parts: Sequence[SiteData]) -> SiteData:
    def read(split: str) -> Split:
        found = [part.split(split) for part in parts]
        return Split(
            torch.cat([one.images for one in found]),
            torch.cat([one.labels for one in found]),
            tuple(f"{part.name}/{who}" for part, one in zip(parts, found, strict=True) for who in one.patients),
            tuple(f"{part.name}/{file}" for part, one in zip(parts, found, strict=True) for file in one.files),
        )

    return SiteData(
        name=name,
        grading=parts[0].scheme,
        counts={split: sum(part.counts[split] for part in parts) for split in parts[0].counts},
        synthetic=any(part.synthetic for part in parts),
        bad_files=sum(part.bad_files for part in parts),
        fingerprint=hashlib.sha256("\n".join(part.fingerprint for part in parts).encode()).hexdigest(),
        _read=read,
        min_count=max(part.min_count for part in parts),
        listed=hashlib.sha256("\n".join(part.listed for part in parts).encode()).hexdigest(),
        changes="accept" if all(part.changes == "accept" for part in parts) else "refuse",
    )
