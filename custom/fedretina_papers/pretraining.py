"""Encoders that sites pre-train without labels, for as long as they are given, and files of what they have become."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fedretina.data.site_data import SiteData, pools
from fedretina.errors import SettingsError
from fedretina.exchange.payload import Tensors
from fedretina.local.model import site_network
from fedretina.loop import run_loop
from fedretina.networks.encoder_file import Learned, export_encoder
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Plan
from fedretina.storage import read_json, read_tensors, write_json

TOLD = "pretrained.json"
"""In a pre-training's folder: how far it has come."""


class _TimeIsUpError(Exception):
    """Ends a run between two orders, as a kill would."""


class Pretrained(NamedTuple):
    """How far a pre-training has come.

    Attributes:
        rounds: Rounds that are done; 0 before the first, and then there is no file.
        of: Rounds in all.
        passes: Passes over each site's training images.
        files: By site the file of its encoder and its SHA-256.
        losses: Contrastive loss of each round, mean of the sites, in nats.
        bytes: Up and down, all sites and rounds.
        minutes: Processor time of all calls.
    """

    rounds: int
    of: int
    passes: int
    files: Mapping[str, Mapping[str, str]]
    losses: list[float]
    bytes: Mapping[str, int]
    minutes: float


def pretrained(
    experiment: Experiment,
    sites: Mapping[str, SiteData],
    folder: Path,
    minutes: float,
    tell: Callable[[str], None] = lambda words: None,
    enough: int | None = None,
) -> Pretrained:
    """Pre-train, or go on with it, and write each site's encoder as the last whole round left it.

    Args:
        experiment: One whose only phase has no labels.
        sites: Data by site.
        folder: Of this pre-training; the run lies in it, and the files of encoders.
        minutes: Processor time for this call; one round is done at least, unless all are. 0 takes what is there once
            there is any.
        tell: Called after each round.
        enough: Rounds after which no call goes on; all of the experiment's where None.

    Returns:
        How far it has come, as stored in `TOLD`.

    Raises:
        FedretinaError: The run cannot go on.
    """
    stored = folder / TOLD
    all_rounds = experiment.phases[0].rounds
    of = min(enough or all_rounds, all_rounds)
    before = Pretrained(**read_json(stored)) if stored.exists() else Pretrained(0, of, 0, {}, [], {}, 0)
    if before.rounds >= of or (before.rounds and not minutes):
        return before._replace(of=of)
    began, first, told = time.process_time(), before.rounds, first_of(experiment, sites)

    def stop(done: int, orders: int) -> None:
        rounds, within = divmod(done, told)
        if within == 0 and first < rounds:
            tell(f"round {min(rounds, all_rounds)} of {of}")
            # The last round's run goes on to its end; a call that was killed may find more rounds than are enough.
            if rounds < all_rounds and (rounds >= of or time.process_time() - began > 60 * minutes):
                raise _TimeIsUpError

    with suppress(_TimeIsUpError):
        run_loop(experiment, sites, folder, "run", tell=stop)
    found = _as_it_stands(experiment, sites, folder, before.minutes + (time.process_time() - began) / 60)
    found = found._replace(of=of)
    write_json(stored, found._asdict())
    return found


def given_encoders(out: Path) -> dict[str, dict[str, Any]]:
    """What a study's folder holds of encoders that were pre-trained in it, as a block's plan takes them.

    Args:
        out: Its folder.

    Raises:
        SettingsError: It holds none.
        StateError: What is told of one is damaged.
    """
    found = {}
    for told in sorted((out / "encoders").glob("*.json")):
        done, folder = Pretrained(**read_json(told)), (out / "pretraining" / told.stem).resolve()
        found[told.stem] = {
            "files": {site: {**one, "file": str(folder / one["file"])} for site, one in done.files.items()},
            "passes": done.passes,
            "sent": round(done.bytes["up"] / len(done.files)),
            "received": round(done.bytes["down"] / len(done.files)),
            "losses": done.losses,
            "minutes": done.minutes,
        }
    if not found:
        raise SettingsError(f"{out.name} holds no pre-trained encoders: run `fedretina benchmark p1-oct` there first.")
    return found


def first_of(experiment: Experiment, sites: Mapping[str, SiteData]) -> int:
    """How many take part in a round: sites, or pools of them."""
    return len(pools(sites, experiment.supervised)) if experiment.pooled else len(sites)


def _as_it_stands(experiment: Experiment, sites: Mapping[str, SiteData], folder: Path, minutes: float) -> Pretrained:
    """Read what the last whole round left, and write the encoders."""
    run, plan, phase = folder / "run", Plan.of(experiment), experiment.phases[0]
    rounds = min(int(read_json(run / "server" / "run.json")["done"]), phase.rounds)
    records = [read_json(run / "server" / f"{plan[at].name}.json") for at in range(rounds)]
    net = site_network(experiment, None)
    learned: Learned = net.provenance or {}
    start = {key: tensor for key, tensor in net.state_dict().items() if key.startswith("encoder.")}
    joined = pools(sites, experiment.supervised) if experiment.pooled else []
    hosts = {site: pool.data.name for pool in joined for site in pool.members}
    files = {}
    told = f"{experiment.name}: {rounds} rounds without labels on the sites' training images"
    for site in sorted(sites):
        host = hosts.get(site, site)
        there = "server" if experiment.shares else host
        path = folder / f"{there}.safetensors"
        if there not in files:
            state, _ = read_tensors(run / there / f"{plan[rounds - 1].name}.safetensors")
            whole, name = _encoder(state, start), experiment.network.encoder
            digest = export_encoder(path, name, whole, net.normalisation, told, learned)
            files[there] = {"file": path.name, "sha256": digest}
    trained = phase.training or experiment.training
    return Pretrained(
        rounds=rounds,
        of=phase.rounds,
        passes=rounds * trained.epochs,
        files={site: files["server" if experiment.shares else hosts.get(site, site)] for site in sorted(sites)},
        losses=[_mean([one["contrast_loss"] for one in record["scalars"].values()]) for record in records],
        bytes={
            "up": sum(sum(record["bytes_up"].values()) for record in records),
            "down": sum(record["bytes_down"] * len(record["bytes_up"]) for record in records),
        },
        minutes=round(minutes, 2),
    )


def _encoder(state: Tensors, start: Tensors) -> dict[str, Any]:
    """The whole encoder: what moved, over the start; no answer depends on the counters, which are each site's own."""
    moved = {key: tensor for key, tensor in state.items() if key in start and not key.endswith(".num_batches_tracked")}
    return {**start, **moved}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
