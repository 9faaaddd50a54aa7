"""Out-of-distribution images: of diseases that no site grades, and other sites' own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from fedretina.data.manifest import PRETRAIN, SPLITS, UNLABELLED
from fedretina.data.site_data import SiteData, Split, load_site_data
from fedretina.errors import DataError
from fedretina.settings.site import read_data_settings
from fedretina_papers.asked import OutsideImages
from fedretina_papers.measure import first_images
from fedretina_papers.plan import BenchmarkPlan


class OutsideSet(NamedTuple):
    """A set of images from outside.

    Attributes:
        split: The images; their labels are classes of `diseases`, or -1 where none is told.
        diseases: Names of their own classes; none where they have no grading scheme.
        synthetic: Whether there are phantoms among them.
    """

    split: Split
    diseases: tuple[str, ...]
    synthetic: bool


def outside_sets(plan: BenchmarkPlan, out: Path) -> dict[str, OutsideSet]:
    """Read the plan's sets of out-of-distribution images; all their splits count, for nothing was trained on them.

    Raises:
        DataError: A set cannot be read, or holds no image.
    """
    images = plan.experiment_of(plan.rows[0], plan.seeds_of(plan.rows[0])[0], {}).images
    found = {}
    for name, file in sorted(plan.strangers.items()):
        settings = read_data_settings(file, name)
        data = load_site_data(name, settings, images, plan.seeds[0], out / "cache" / f"strangers-{name}", False)
        parts = [data.split(one) for one in SPLITS if data.counts[one]]
        known = {name for part in parts for name in part.files}
        loose = data.split(PRETRAIN)
        alone = [at for at, name in enumerate(loose.files) if name not in known]
        if alone:
            patients, files = (tuple(names[at] for at in alone) for names in (loose.patients, loose.files))
            parts.append(Split(loose.images[alone], torch.full((len(alone),), UNLABELLED), patients, files))
        if not parts:
            raise DataError(f"the out-of-distribution set {name} holds no image: list some in its manifest.")
        whole = Split(
            torch.cat([part.images for part in parts]),
            torch.cat([part.labels for part in parts]),
            tuple(who for part in parts for who in part.patients),
            tuple(one for part in parts for one in part.files),
        )
        found[name] = OutsideSet(whole, () if data.grading is None else data.grading.grades, data.synthetic)
    return found


def outside_of(
    site: str, sites: Mapping[str, SiteData], outside: Mapping[str, OutsideSet], others: int
) -> dict[str, OutsideImages]:
    """All images from outside that a site's model is asked about.

    Args:
        site: The site.
        sites: All sites, itself among them.
        outside: The plan's sets.
        others: At most so many test images of each other site; 0 for none.
    """
    found = {name: OutsideImages(one.split, one.diseases, one.synthetic, False) for name, one in outside.items()}
    for name, data in sites.items() if others else ():
        if name != site:
            few = first_images(data.split("test"), others, "others", name)
            unlabelled = few._replace(labels=torch.full_like(few.labels, UNLABELLED))  # its grades are not these
            found[name] = OutsideImages(unlabelled, (), data.synthetic, True)
    return found
