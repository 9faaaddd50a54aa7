"""What the project demands of a kind of data, as one call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedretina.data.check.report import check_site
from fedretina.data.check.rows import open_source
from fedretina.data.decode import is_phantom
from fedretina.data.modalities import image_pipeline, modality_named
from fedretina.data.phantoms.draw import IMAGES, SITE_FILE, phantom_samples, write_hospital
from fedretina.data.phantoms.hospital import phantom_hospital
from fedretina.data.readers.survey import ImportSettings
from fedretina.errors import DataError
from fedretina.settings.images import AugmentSettings, ImageSettings, image_settings
from fedretina.testing.methods import check_row, refuses_what_is_no_number, require

_SIDE, _IMAGES = 64, 16


def check_modality(name: str, folder: Path) -> dict[str, Any]:
    """Hold a kind of data to what every one must do.

    Its settings refuse numbers that are none, say what its samples are called and name random transforms that there
    are. Each hospital of its phantoms is drawn twice with the same bits, in memory and as files that are marked as
    synthetic, a sample depends on its case alone, and the data check finds nothing wrong with the files. The pipeline
    gives each file as uint8 of the shape that the settings say, twice the same, and refuses one that is damaged with a
    DataError. It passes `check_row` under FedAvg with the usual random transforms, less those that make no sense.

    Args:
        name: What a job calls it.
        folder: An empty folder for the hospitals and the runs.

    Returns:
        The results of the run.

    Raises:
        AssertionError: It does not do what it must.
        SettingsError: There is no such modality.
    """
    settings = image_settings(name, _SIDE)
    _says_what_it_is(settings)
    for number in range(len(modality_named(name).phantoms.presets)):
        _hospital_holds(f"site-{number + 1}", settings, folder)
    unfit = AugmentSettings().unfit(settings)
    return check_row({"row": "fedavg", "images": {"modality": name}, "augment": dict.fromkeys(unfit, 0)}, folder)


def _says_what_it_is(settings: ImageSettings) -> None:
    refuses_what_is_no_number(settings)
    require(bool(settings.words.strip()), "does not say what its samples are called: give its settings `words`")
    strangers = sorted(settings.augments - AugmentSettings.model_fields.keys())
    require(not strangers, f"names random transforms {strangers} that there are not")
    shape = settings.shape
    require(len(shape) == 3 and shape[0] == 3 and min(shape) >= 1, f"has samples {shape}, not 3 x height x width")
    others = [
        settings.model_copy(update={key: not value})
        for key, value in settings.model_dump().items()
        if isinstance(value, bool)
    ]
    digests = {one.digest() for one in (settings, *others)}
    require(len(digests) == 1 + len(others), "has one digest for different settings, so a cache would be mistaken")


def _hospital_holds(site: str, settings: ImageSettings, folder: Path) -> None:
    hospital = phantom_hospital(site, _IMAGES, modality=settings.modality)
    seed = (1, "phantom", site, "train")
    cases = hospital.cases(0, seed)
    first, again = (phantom_samples(hospital, cases, settings, seed) for _ in range(2))
    require(first.dtype == torch.uint8, f"draws phantoms of {first.dtype}, expected torch.uint8")
    shape = tuple(first.shape)
    require(shape == (len(cases), *settings.shape), f"draws phantoms {shape} of {len(cases)} x {settings.shape}")
    require(torch.equal(first, again), "draws other phantoms the second time")
    alone = phantom_samples(hospital, cases[-1:], settings, seed)
    require(torch.equal(alone[0], first[-1]), "draws a phantom otherwise when others are drawn with it")
    drawn = folder / "hospitals" / site
    write_hospital(site, hospital, drawn, _SIDE, 1)
    files = sorted((drawn / IMAGES).iterdir())
    require(all(map(is_phantom, files)), "draws files that are not marked as synthetic")
    source = open_source(drawn / SITE_FILE, ImportSettings())
    errors = [one.code for one in check_site(source, image_size=_SIDE).findings if one.severity == "error"]
    require(not errors, f"draws files in which the data check finds {', '.join(errors)}")
    run = image_pipeline(settings)
    for file in files[:4]:
        sample = run(file)
        require(sample.dtype == np.uint8, f"makes {sample.dtype} of a file, expected uint8")
        require(sample.shape == settings.shape, f"makes {sample.shape} of a file, expected {settings.shape}")
        require(np.array_equal(run(file), sample), "makes something else of a file the second time")
    _refuses_damage(run, files[0])


def _refuses_damage(run: Callable[[str | Path], Any], file: Path) -> None:
    damaged = file.parents[1] / f"damaged{file.suffix}"
    damaged.write_bytes(file.read_bytes()[:100])
    try:
        run(damaged)
    except DataError:
        return
    except Exception as error:
        raise AssertionError(
            f"the part fails on a damaged file with {type(error).__name__}: let it be DataError."
        ) from error
    raise AssertionError("the part reads a damaged file as if it were whole: raise DataError.")
