"""Which sites are asked in a round of training."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import BaseModel, ConfigDict, Field

from fedretina.seeds import derive_seed


class SamplingSettings(BaseModel):
    """Client sampling.

    Attributes:
        fraction: Share of the enrolled sites that train in a round; 1 asks all. Below 1 only the last model is
            measured by all sites, so a run ends with its last model instead of its best.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    fraction: float = Field(default=1.0, gt=0, le=1)


def sampled(
    sites: Collection[str], settings: SamplingSettings, quorum: int, purpose: tuple[int | str, ...]
) -> list[str]:
    """Draw the sites of a round, uniformly and without replacement.

    A site's chance does not depend on the names of the others: the sites with the smallest hashes are taken, so the
    simulator, the loop and a resumed run draw the same.

    Args:
        sites: The enrolled sites.
        settings: How many.
        quorum: Never fewer than this, or the round could not count.
        purpose: What the draw is for: seed, phase and round.

    Returns:
        The names in alphabetical order; at least one.
    """
    count = min(len(sites), max(1, quorum, round(settings.fraction * len(sites))))
    order = sorted(sites, key=lambda site: (derive_seed(*purpose, "sampling", site), site))
    return sorted(order[:count])
