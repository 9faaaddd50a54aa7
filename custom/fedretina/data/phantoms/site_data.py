"""The data of a site that points to none of its own: a phantom hospital's splits, drawn when they are asked for."""

from __future__ import annotations

import torch

from fedretina.data.manifest import PRETRAIN, SPLITS, UNLABELLED
from fedretina.data.phantoms.draw import phantom_samples
from fedretina.data.phantoms.hospital import PHANTOM_VERSION, phantom_hospital
from fedretina.data.site_data import SiteData, Split, fingerprint, require_splits
from fedretina.settings.images import SIGNALS, ImageSettings
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.site import SiteDataSettings


def phantom_site_data(
    site: str, settings: SiteDataSettings, scheme: GradingScheme | None, transforms: ImageSettings, seed: int
) -> SiteData:
    """The data of a phantom hospital; a split is drawn when it is first asked for.

    Args:
        site: Name of the site.
        settings: How many images there are.
        scheme: Its grades; its own choice where None.
        transforms: Of the samples; a picture takes only its modality and its size from them.
        seed: Of all that is drawn.

    Raises:
        DataError: Phantoms cannot show a grade of the scheme, a split is empty, or train has one class only.
    """
    modality = transforms.modality
    hospital = phantom_hospital(site, settings.phantom_images, scheme, modality)
    purposes = {split: (seed, "phantom", site, split) for split in SPLITS}
    cases = {split: hospital.cases(at, purposes[split])[: settings.most(split)] for at, split in enumerate(SPLITS)}
    require_splits(site, {split: [case.label for case in chosen] for split, chosen in cases.items()}, 0)
    drawn: dict[str, Split] = {}

    def read(split: str) -> Split:
        if split == PRETRAIN:
            train = read("train")
            most = settings.most(PRETRAIN)
            unlabelled = torch.full_like(train.labels, UNLABELLED)
            return Split(train.images[:most], unlabelled[:most], train.patients[:most], train.files[:most])
        if split not in drawn:
            chosen = cases[split]
            drawn[split] = Split(
                phantom_samples(hospital, chosen, transforms, purposes[split]),
                torch.tensor([case.label for case in chosen], dtype=torch.int64),
                tuple(case.patient_name(split) for case in chosen),
                tuple(case.file_name(split, modality) for case in chosen),
            )
        return drawn[split]

    counts = {split: len(chosen) for split, chosen in cases.items()}
    drawing = f"phantom {PHANTOM_VERSION}" if modality == "fundus" else f"phantom {modality} {PHANTOM_VERSION}"
    # Of a signal the transforms are part of what is drawn, of a picture its size alone.
    size = transforms.digest() if modality in SIGNALS else transforms.shape[1]
    lines = [f"{drawing} {site} {seed} {size} {list(hospital.mix)} {sorted(counts.items())}"]
    identity = fingerprint(hospital.scheme, lines)
    counts[PRETRAIN] = min(counts["train"], settings.most(PRETRAIN) or counts["train"])
    return SiteData(site, hospital.scheme, counts, True, 0, identity, read, settings.min_count)
