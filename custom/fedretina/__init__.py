"""Federated learning for retinal images, with a model at each hospital that says how sure it is.

The names in `__all__` are the public ones: docs/api.md describes them, and they stay from version to version. Each is
imported when it is used first. Nothing heavy is imported here: a site pays every import again in each simulator task.
"""

from typing import TYPE_CHECKING, Any

from fedretina.version import __version__

if TYPE_CHECKING:
    from fedretina.aggregation.results import results_table
    from fedretina.api import draw_site, load_model, load_site, predict
    from fedretina.data.site_data import SiteData
    from fedretina.errors import FedretinaError
    from fedretina.export.model import Model, load
    from fedretina.loop import run_loop
    from fedretina.prediction.predictor import ImageRow, Predictor
    from fedretina.settings.experiment import Experiment

__all__ = [
    "Experiment",
    "FedretinaError",
    "ImageRow",
    "Model",
    "Predictor",
    "SiteData",
    "__version__",
    "draw_site",
    "load",
    "load_model",
    "load_site",
    "predict",
    "results_table",
    "run_loop",
]

_PLACES = {
    "Experiment": "fedretina.settings.experiment",
    "FedretinaError": "fedretina.errors",
    "ImageRow": "fedretina.prediction.predictor",
    "Model": "fedretina.export.model",
    "Predictor": "fedretina.prediction.predictor",
    "SiteData": "fedretina.data.site_data",
    "draw_site": "fedretina.api",
    "load": "fedretina.export.model",
    "load_model": "fedretina.api",
    "load_site": "fedretina.api",
    "predict": "fedretina.api",
    "results_table": "fedretina.aggregation.results",
    "run_loop": "fedretina.loop",
}


if not TYPE_CHECKING:  # a name that there is not is then told by mypy too

    def __getattr__(name: str) -> Any:
        if name not in _PLACES:
            raise AttributeError(f"module 'fedretina' has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(_PLACES[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted(__all__)  # the modules below are no part of what stays
