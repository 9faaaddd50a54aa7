"""The network as a site has it: with its own grades at the end."""

from __future__ import annotations

from fedretina.errors import DataError, TrainingError
from fedretina.losses.objective import build_objective
from fedretina.networks.build import build_network
from fedretina.networks.label_space import label_space
from fedretina.networks.network import Network
from fedretina.settings.experiment import Experiment
from fedretina.settings.network import NetworkSettings
from fedretina.settings.scheme import GradingScheme

_ANY_GRADES = 2


def site_network(
    experiment: Experiment,
    scheme: GradingScheme | None,
    seed: int | None = None,
    settings: NetworkSettings | None = None,
) -> Network:
    """Build a site's network, on the CPU.

    Args:
        experiment: The run's settings.
        scheme: The site's grades; where the head has named classes, the scheme says which each grade stands for. None
            at a site that only pre-trains: its head rests, and any width will do.
        seed: Of the start; the run's by default.
        settings: Of the network; the run's by default.

    Raises:
        TrainingError: The head travels, and the site's grades do not fit it.
        SettingsError: The weights cannot be loaded.
    """
    grades = _ANY_GRADES if scheme is None else scheme.num_classes
    if scheme is not None and experiment.grades not in (None, grades):
        raise TrainingError(
            f"the job's head has {experiment.grades} grades and this site's scheme {grades}: "
            "let the head be personal (exchange.personal: head)."
        )
    width = experiment.head_width or grades
    net = build_network(settings or experiment.network, width, experiment.seed if seed is None else seed)
    if scheme is not None and experiment.classes is not None:
        try:
            cover = scheme.cover(experiment.classes)
        except DataError as error:
            raise TrainingError(
                f"the grades of this site do not fit the {width} classes of the job's head: say in the site's scheme "
                "which classes each grade stands for (`covers`), or let the head be personal."
            ) from error
        net.space = label_space(cover, width, build_objective(experiment.objective).evidential)
    return net
