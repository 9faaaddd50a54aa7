"""A round's accepted updates on disk, so that the server's memory does not grow with the number of sites."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from fedretina.exchange.payload import Tensors
from fedretina.storage import open_tensors, read_tensors, require_name, write_tensors

Adapt = Callable[[str, str, torch.Tensor], torch.Tensor]
"""Changes one site's tensor before it is mixed: site, key, float64 value."""

_BLOCK = 2**21  # numbers of all sites that stand side by side at once: 17 MB in float64


class Spool:
    """Updates of one round, one file per site.

    A spool begins empty: what an interrupted round left behind is erased, since its sites are asked again.

    Args:
        folder: Where the files go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.erase()
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, site: str, tensors: Tensors) -> None:
        """Store one site's tensors."""
        write_tensors(self._path(site), tensors, {"site": site}, durable=False)

    def read(self, site: str) -> dict[str, torch.Tensor]:
        """All tensors of one site; for small ones."""
        return read_tensors(self._path(site))[0]

    def discard(self, site: str) -> None:
        """Forget one site's tensors."""
        self._path(site).unlink(missing_ok=True)

    def tensor(self, site: str, key: str) -> torch.Tensor:
        """One tensor of one site; see `opened` for many."""
        with self.opened(site) as tensor:
            return tensor(key)

    @contextmanager
    def opened(self, site: str) -> Iterator[Callable[[str], torch.Tensor]]:
        """Read one site's tensors by key.

        One site at a time: a file that is open keeps all its pages in memory (7 GB at 64 sites).
        """
        with open_tensors(self._path(site)) as (handle, _):
            yield handle.get_tensor

    def blocks(self, key: str, sites: Sequence[str]) -> Iterator[torch.Tensor]:
        """The sites' values of one tensor side by side, flat, in stretches that fit into memory.

        Args:
            key: The tensor.
            sites: In the order of the rows.

        Yields:
            [sites, numbers]; together all numbers of the tensor, in order.
        """
        with open_tensors(self._path(sites[0])) as (handle, _):
            shape = handle.get_slice(key).get_shape()
        if not shape:
            yield torch.stack([self.tensor(site, key).reshape(1) for site in sites])
            return
        rows = max(1, _BLOCK // max(1, math.prod(shape[1:]) * len(sites)))
        for begin in range(0, shape[0], rows):
            parts = []
            for site in sites:
                with open_tensors(self._path(site)) as (handle, _):
                    parts.append(handle.get_slice(key)[begin : begin + rows].reshape(-1))
            yield torch.stack(parts)

    def weighted_mean(
        self, weights: Mapping[str, float], like: Mapping[str, torch.dtype], adapt: Adapt | None = None
    ) -> dict[str, torch.Tensor]:
        """Mix the sites' tensors, tensor by tensor: sum_i w_i x_i.

        Sites are walked in the order of their names and summed in float64, so that the order in which they
        answered changes no bit. Whole-number tensors (the official code's leaked counters) are mixed in
        floating point and truncated, as that code does.

        Args:
            weights: By site; every site must have been put.
            like: Type of the result by key; the keys decide what is mixed.
            adapt: Changes a site's tensor first; None takes each as it is.

        Returns:
            By key, one tensor each; memory in use is one model and two stretches of it, whatever the number of sites.
        """
        mixed: dict[str, torch.Tensor] = {}
        for keys in self._batches(sorted(like), sorted(weights)):
            totals: dict[str, torch.Tensor] = {}
            for site in sorted(weights):
                with self.opened(site) as tensor:
                    for key in keys:
                        share = tensor(key).to(torch.float64)
                        share = (share if adapt is None else adapt(site, key, share)).mul_(weights[site])
                        totals[key] = totals[key].add_(share) if key in totals else share
            mixed |= {key: total.to(like[key]) for key, total in totals.items()}
        return mixed

    def _batches(self, keys: Sequence[str], sites: Sequence[str]) -> Iterator[list[str]]:
        """Keys in their order, as many at once as a stretch holds: opening a file costs as much as a small tensor."""
        if not keys or not sites:  # who sends nothing has no file
            return
        with open_tensors(self._path(sites[0])) as (handle, _):
            sizes = [math.prod(handle.get_slice(key).get_shape()) for key in keys]
        batch: list[str] = []
        held = 0
        for key, size in zip(keys, sizes, strict=True):
            if batch and held + size > _BLOCK:
                yield batch
                batch, held = [], 0
            batch.append(key)
            held += size
        yield batch

    def erase(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, site: str) -> Path:
        return self._folder / f"{require_name(site, 'site')}.safetensors"
