"""Where a site's data lie and how they are graded: settings of the site's own."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedretina.data.modality import Modality
from fedretina.data.scheme import GradingScheme
from fedretina.data.scheme_presets import preset, preset_modality
from fedretina.errors import DataError, SettingsError
from fedretina.exchange.min_count import MIN_COUNT


class SiteDataSettings(BaseModel):
    """Where a site's data lie and how they are graded; the site's own, never a job's.

    Attributes:
        manifest: The manifest; without one the site is a phantom hospital.
        images: Image root; by default the manifest's folder.
        scheme: The grading scheme or a preset's name; must be given with a manifest, save for pre-training alone.
        modality: What the images are, so that a job for others is refused; None is what the preset that `scheme` names
            grades, and for a scheme of the site's own nothing is refused.
        cache: Folder of the image cache.
        bad_files: Whether images that cannot be read are left out or stop the site.
        limit: At most so many images of a split, chosen by a hash of the file's name, for short runs. "pretrain" takes
            from the images of train that its own limit leaves and from those without a label.
        min_count: Fewest patients behind any count of answers that leaves the site, and behind any figure of its
            validation or test split; more than it has, and none leaves.
        changes: What happens when the manifest lists other files, labels, patients or splits than when the site's
            rounds of a run began, so that it could be tested on what it was trained on: "refuse" keeps the site out of
            the run until the old manifest is back, "accept" goes on, and the model's card says so.
        phantom_images: Training images of an average phantom hospital.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    manifest: Path | None = None
    images: Path | None = None
    scheme: GradingScheme | str | None = None
    modality: Modality | None = None
    cache: Path | None = None
    bad_files: Literal["skip", "refuse"] = "skip"
    limit: dict[Literal["train", "val", "test", "pretrain"], int] | None = None
    min_count: int = Field(default=MIN_COUNT, ge=2)
    changes: Literal["refuse", "accept"] = "refuse"
    phantom_images: int = Field(default=160, ge=1)

    @field_validator("limit")
    @classmethod
    def _check_limit(cls, limit: dict[str, int] | None) -> dict[str, int] | None:
        low = {split: count for split, count in (limit or {}).items() if count < 1}
        if low:
            raise ValueError(f"limit is {low}: allow at least one image a split, or leave the split out.")
        return limit

    @property
    def resolved_modality(self) -> Modality | None:
        """What the images are; None where the site does not say. Phantoms are drawn as a job asks."""
        said = self.modality
        return preset_modality(self.scheme) if said is None and self.manifest is not None else said

    def most(self, split: str) -> int | None:
        """How many images of a split are taken at most, 1 or more; None for all."""
        return {str(name): most for name, most in (self.limit or {}).items()}.get(split)

    def resolved_scheme(self) -> GradingScheme | None:
        """The scheme itself where a preset is named.

        Raises:
            DataError: There is no such preset.
        """
        if not isinstance(self.scheme, str):
            return self.scheme
        try:
            return preset(self.scheme)
        except SettingsError as error:
            raise DataError(str(error)) from error
