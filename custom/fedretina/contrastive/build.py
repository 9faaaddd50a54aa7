"""What begins a round of contrastive training."""

from __future__ import annotations

from fedretina.contrastive.objective import ContrastiveContext, ContrastiveRound, contrastive
from fedretina.errors import SettingsError, TrainingError
from fedretina.settings.contrastive import ContrastiveSettings


class Contrastive:
    """A contrastive objective; it has no state of its own, so one instance serves any number of rounds."""

    def __init__(self, settings: ContrastiveSettings) -> None:
        self._settings = settings

    def begin(self, context: ContrastiveContext) -> ContrastiveRound:
        """Begin a round at a site, before a correction hooks into the network.

        A site whose images are all of one patient is refused, not trained at a loss of 0: it would send the aggregate
        back as its own work and hold the others up.

        Args:
            context: Network, memory and data of the round.

        Raises:
            SettingsError: The network has no contrastive head of this method.
            TrainingError: The site has fewer images than a batch, or one patient only.
        """
        if (context.head.predictor is not None) != self._settings.predicts:
            raise SettingsError(
                f"contrastive training by {self._settings.method} needs its own head: set "
                "network.contrast.layout to it."
            )
        if self._settings.mask_patients and int(context.patients.min()) == int(context.patients.max()):
            raise TrainingError(
                "all training images of the site are of one patient, so none is a negative of another: let the site "
                "add patients, or set contrastive.mask_patients to false."
            )
        return contrastive.of(self._settings)(context, self._settings)


def build_contrastive(settings: ContrastiveSettings) -> Contrastive:
    """Build the objective that the settings name."""
    return Contrastive(settings)
