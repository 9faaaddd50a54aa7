"""What it takes to build one site of a run, in plain words that may be handed to another process."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from fedretina.data.site_data import load_site_data
from fedretina.data.site_data_settings import SiteDataSettings
from fedretina.exchange.sealing import sealer_for
from fedretina.experiment import Experiment
from fedretina.local.site import Site


class SiteRecipe(BaseModel):
    """Everything that a site is made of; it never leaves the machine.

    Attributes:
        experiment: The run's settings, with this machine's own path to a weights file.
        site: Name of the site.
        data: Where its data are.
        folder: Its own folder of the run.
        cache: Folder of the image cache where the data settings name none.
        he_keys: The site's own file of keys, where the job encrypts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    experiment: Experiment
    site: str
    data: SiteDataSettings
    folder: Path
    cache: Path
    he_keys: Path | None = None

    def build(self) -> Site:
        """Open the data and build the site.

        Raises:
            FedretinaError: The data or the settings cannot be used.
        """
        experiment = self.experiment
        data = load_site_data(
            self.site, self.data, experiment.images, experiment.seed, self.cache, experiment.supervised
        )
        sealer = sealer_for(experiment.exchange, self.he_keys, private=True)
        return Site(experiment, data, self.folder, sealer)
