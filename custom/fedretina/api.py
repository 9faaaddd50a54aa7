"""What a notebook does in one line each: open a site's data, load a model, ask it, draw a phantom hospital.

`import fedretina` gives these functions with the few classes around them (docs/api.md). They only put together what the
commands do; who builds upon fedretina imports the modules below, which may change between versions.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Literal

from fedretina.data.phantoms.draw import SITE_FILE, write_hospital
from fedretina.data.phantoms.hospital import phantom_hospital
from fedretina.data.site_data import SiteData, load_site_data
from fedretina.errors import DataError, SettingsError
from fedretina.prediction.predictor import ImageRow, Predictor
from fedretina.settings.experiment import Experiment
from fedretina.settings.site import SiteDataSettings, job_data, read_data_settings
from fedretina.storage import require_sites


def load_site(
    name: str,
    experiment: Experiment,
    site_file: str | PathLike[str] | None = None,
    cache: str | PathLike[str] | None = None,
) -> SiteData:
    """Open a hospital's data as a run with these settings reads them; a phantom hospital without a site file.

    Args:
        name: Name of the site.
        experiment: The run's settings: which images, which size, and, for phantoms, how many and their seed.
        site_file: The hospital's `site.yaml`, which says where its data lie and how they are graded.
        cache: Folder for the decoded images where the site file names none; `fedretina_runs/cache/NAME` by default.

    Raises:
        DataError: The site file, its manifest or its images cannot be used.
        SettingsError: The images are not of the experiment's modality, or there is no site file and the experiment
            takes no phantoms.
        RefusedError: The name cannot be a site's.
    """
    require_sites([name])
    settings = read_data_settings(Path(site_file), name) if site_file is not None else SiteDataSettings()
    if settings.manifest is None and not experiment.phantom_images:
        raise SettingsError(
            f"{name} has no data, and the experiment takes no phantom hospitals (phantom_images: 0): name its site "
            "file, or set phantom_images to 16 or more."
        )
    settings = job_data(name, settings, experiment.phantom_images)
    folder = Path("fedretina_runs") / "cache" / name if cache is None else Path(cache)
    return load_site_data(
        name, settings, experiment.images, experiment.seed, folder, experiment.supervised, trains=experiment.trains
    )


def load_model(folder: str | PathLike[str], device: Literal["auto", "cpu", "cuda"] = "auto") -> Predictor:
    """Load a site's model with its card from a finished run.

    Args:
        folder: A site's folder of a run, such as `fedretina_runs/RUN/SITE`, or `final` in it.
        device: Where to compute; "auto" is CUDA where there is one.

    Raises:
        StateError: A file is missing or damaged, was changed after the run, or is of another version.
        SettingsError: CUDA is asked for and not there.
    """
    return Predictor.load(Path(folder), device)


def predict(model: Predictor, folder: str | PathLike[str]) -> list[ImageRow]:
    """Ask a model for the grade of every photograph in a folder and the folders in it, and how sure it is.

    Args:
        model: What `load_model` gave.
        folder: Photographs, DICOM files among them, or recordings (`.wav`) where the model grades those.

    Returns:
        One row per file, in the order of their names, and one per frame of a DICOM volume. A file that cannot be read
        has a row too, with `fault`.

    Raises:
        DataError: The folder cannot be listed or holds no such file.
        SettingsError: It holds DICOM files, and pydicom is not installed.
    """
    root = Path(folder)
    found = model.find(root)
    if not found.files:
        kind = "recording" if model.of_signals else "photograph"
        raise DataError(f"{root} holds no {kind}: name another folder.")
    return list(model.predict(root, found.files, found.frames))


def draw_site(
    name: str,
    folder: str | PathLike[str],
    images: int = 160,
    size: int = 256,
    seed: int = 1,
    modality: str = "fundus",
) -> Path:
    """Draw a phantom hospital to disk: synthetic pictures or signals, a manifest and a site file.

    The same arguments give the same files. Each is marked as synthetic, and so is what learns from them.

    Args:
        name: Name of the site; site-1 to site-5 are modelled on five public sets.
        folder: A folder to write, new or empty.
        images: Training images of an average hospital, 16 or more; this one may have more or fewer.
        size: Side of the square pictures in pixels, from 32 to 1024; signals have none.
        seed: Seed of patients and pictures, 0 or more.
        modality: What the hospital takes, such as "oct".

    Returns:
        The site file, for `load_site`.

    Raises:
        DataError: The folder holds files already or cannot be written.
        SettingsError: A number is out of its range.
        RefusedError: The name cannot be a site's.
    """
    require_sites([name])
    for what, value, least, most in (("images", images, 16, None), ("size", size, 32, 1024), ("seed", seed, 0, None)):
        if value < least or (most is not None and value > most):
            raise SettingsError(
                f"{what} is {value}: give {least} or more{'' if most is None else f', at most {most}'}."
            )
    write_hospital(name, phantom_hospital(name, images, modality=modality), Path(folder), size, seed)
    return Path(folder) / SITE_FILE
