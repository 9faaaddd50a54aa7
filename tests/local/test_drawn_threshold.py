"""A run in which one small site has too few ill patients to promise anything, and draws its threshold."""

import json
from dataclasses import replace

import pytest

from fedretina.aggregation.coordinator import Coordinator
from fedretina.data.site_data import load_site_data
from fedretina.local.site import Site
from fedretina.loop import run_loop
from fedretina.settings.site import PromiseSettings, SiteDataSettings
from fedretina.storage import read_json

ASKED = PromiseSettings(missed=0.2, sure=0.8, drawn=True)


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """A small one that asks, and two that have enough patients, of whom one asks as well."""
    made = {}

    def make(experiment):
        folder = tmp_path_factory.mktemp("sites")
        for name, images, asked in (("site-1", 24, ASKED), ("site-2", 160, ASKED), ("site-3", 160, None)):
            settings = SiteDataSettings(phantom_images=images, promise=asked)
            made[name] = load_site_data(name, settings, experiment.images, experiment.seed, folder / name)
        return made

    return make
