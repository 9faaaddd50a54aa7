"""Which sites are asked in a round of training."""

from __future__ import annotations

from collections.abc import Collection

from fedretina.seeds import derive_seed
from fedretina.settings.aggregation import SamplingSettings


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
