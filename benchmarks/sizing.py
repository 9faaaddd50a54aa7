"""What a network costs in bandwidth, memory and disk: small real runs of one site, and the page made of their figures.

python -m benchmarks.sizing            # measure (minutes), store, render docs/sizing.md
python -m benchmarks.sizing --render   # the page again, from the stored figures
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, ROOT, fresh_python, machine
from benchmarks.many_sites import JOB, PEAK, RELAY, RELAY_PEAK
from benchmarks.render import machine_line, number
from fedretina_papers.engine.records import Records
from fedretina_papers.engine.table import Column, Line, listing
from fedretina_papers.engine.table import render as render_table

PAGE = ROOT / "docs" / "sizing.md"
STORED = RESULTS / "sizing.json"
MANY = RESULTS / "many_sites.json"
NETWORKS = {"efficientnet_lite0": "EfficientNet-Lite0", "resnet18": "ResNet-18", "resnet50": "ResNet-50"}
ROWS = ("feduaa", "scaffold")
_SIDE, _BATCH = 256, 32
_TIMEOUT_S = 900.0
_PAPER = 256


def measure(encoder: str, row: str, folder: Path) -> dict[str, float]:
    """Run two rounds and the end over one phantom site in this process; bytes, at its largest."""
    from fedretina.aggregation.coordinator import Coordinator
    from fedretina.local.child_trainer import SiteRecipe
    from fedretina.settings.experiment import Experiment
    from fedretina.settings.site import SiteDataSettings

    words = {
        "row": row,
        "network": {"encoder": encoder},
        "phases": [{"name": "train", "rounds": 2}],
        "images": {"image_size": _SIDE},
        "training": {"batch_size": _BATCH, "learning_rate": 0.001, "threads": 2, "device": "cpu"},
        "phantom_images": 48,
        "report": {"draws": 10, "page": False},
    }
    experiment = Experiment.resolve(words)
    own, server = folder / "site-1", folder / "server"
    data = SiteDataSettings(phantom_images=experiment.phantom_images)
    site = SiteRecipe(experiment=experiment, site="site-1", data=data, folder=own, cache=folder / "cache").build()
    coordinator = Coordinator(experiment, "sizing", server)
    most = {"site": 0.0, "server": 0.0, "spool": 0.0}
    while coordinator.done < len(coordinator.plan):
        coordinator.begin(["site-1"])
        payload = site.handle(coordinator.order("site-1"), coordinator.down("site-1"))
        coordinator.accept("site-1", payload)
        most["spool"] = max(most["spool"], _size(server / "spool"))
        most["site"] = max(most["site"], _size(own))
        coordinator.close()
        most["server"] = max(most["server"], _size(server))
    first = coordinator.records[0]
    return {
        "up": float(first["bytes_up"]["site-1"]),
        "down": float(first["bytes_down"]),
        "site_run": most["site"],
        "server_kept": most["server"],
        "spool_a_site": most["spool"],
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
    }


def render(found: dict[str, Any], many: dict[str, Any] | None = None) -> str:
    """Render the page from the stored figures alone.

    Args:
        found: Those of this benchmark.
        many: Those of `many_sites`, where they are stored.
    """
    seconds = found["cases"]["resnet50/feduaa"]["up"] * 8 / 10e6
    tail = _TAIL.replace("UP s", f"{seconds:.0f} s")
    lines = [_HEAD, *_table("A round and a site", _ROUND, found), *_table("Disk", _DISK, found), tail]
    lines += [machine_line(found["machine"]), ""]
    return "\n".join([*lines, *(_many_sites(many) if many is not None else ())])


def main(words: list[str]) -> None:
    """Measure each case in a fresh process, store, render."""
    if words[:1] == ["--case"]:
        print(json.dumps(measure(words[1], words[2], Path(words[3]))))
        return
    if words != ["--render"]:
        cases: dict[str, dict[str, float]] = {}
        for encoder in NETWORKS:
            for row in ROWS:
                folder = Path(tempfile.mkdtemp(prefix="sizing-"))
                try:
                    told = fresh_python(["-m", "benchmarks.sizing", "--case", encoder, row, str(folder)], _TIMEOUT_S)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                cases[f"{encoder}/{row}"] = json.loads(told.splitlines()[-1])
                print(encoder, row, cases[f"{encoder}/{row}"], flush=True)
        measured = {"cases": cases, "side": _SIDE, "batch": _BATCH, "machine": machine()}
        STORED.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(render(*stored()), encoding="utf-8")


def stored() -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What `render` takes, as it is stored."""
    found, many = (json.loads(path.read_text(encoding="utf-8")) if path.exists() else None for path in (STORED, MANY))
    assert found is not None
    return found, many


_ROUND = {"up, MB": "up", "down, MB": "down", "peak memory of the trainer, MB": "peak_memory"}
_DISK = {
    "site, a run, MB": "site_run",
    "server, kept, MB": "server_kept",
    "server, spool for each site, MB": "spool_a_site",
}

_HEAD = f"""# Sizing

Written by `python -m benchmarks.sizing` from `benchmarks/results/sizing.json`; do not edit. Each line is a real run of two
rounds and its end over one phantom site, at {_SIDE} px, batch {_BATCH}, float32, on the CPU, a fresh process each. MB are
10^6 bytes.
"""  # noqa: E501

_TAIL = f"""## From here to your federation

With N sites, R rounds, S pixels a side and n images:

| what | is about |
|---|---|
| a site's traffic in a run | R x (up + down), and down twice more for `validate` and `finalise` |
| the server's traffic in a run | N times that; sites answer at about the same time |
| time of a transfer | up / bandwidth: ResNet-50 under FedUAA takes UP s at 10 Mbit/s |
| a site's disk | "a run" for each run that is kept (its model, and its part of two rounds; a longer run holds at most eight such parts, to go back by three rounds), and the cache: 3 S^2 bytes per image, {3 * _SIDE**2 / 1e6:.1f} MB at {_SIDE} px; [frozen stages](small_sites.md) keep up to `data.feature_cache_gb` beside it |
| the server's disk | "kept" + N x "spool", for each run, twice that where the disk knows no hard links; \
a longer run keeps up to six models, to go back by three rounds; under `fedap` a model for each site besides \
|
| the server's memory | what mixes the answers is flat in N ([measured](benchmarks.md#server-memory) with 4 sites and with 64); and \
what FLARE's transport holds of large messages that pass at once: some chunks of 16 MB each, since they are \
written to disk as they come (N x up where the disk is full); six pass at once, and besides them each whose line has \
less than 32 Mbit/s |
| a site's memory | the peak above, which grows with batch and S^2; FLARE's own processes beside it |

The peak holds Python, torch and one batch's activations on the CPU. On a GPU the activations are there instead. It was
measured with `trainer: inline`; a child has that memory to itself, and order and answer lie on the site's disk meanwhile.
"""  # noqa: E501

_MANY_HEAD = """What a round costs a server whose sites all answer at the same moment, over mutual TLS on one machine (`python -m benchmarks
many_sites`): medians of the rounds of one run, sites in one process, nobody trains.
"""  # noqa: E501

_MANY_TAIL = f"""1. **CPU of the server's two processes** breaks first. Every byte of every site passes both, and Python runs each of them
   on one core at a time, so no round is shorter than the longer: the job's process JOB CPU s a round, the lasting one RELAY s.
   A codec (`exchange.codec`), frozen stages, or a share of the sites in each round (`sampling`) make it less.
2. The disk holds all answers of a round, DISK GB.
3. Memory: PEAK GB for the job's process and LASTING GB for the lasting one. Of large messages six pass
   at once, to the sites and from them, and the others wait, but for those behind lines of less than 32 Mbit/s: each of them
   holds up to 40 MB. Who has waited two minutes passes beside six more, after four beside twelve more.
4. Open files: {2 * _PAPER} connections at the lasting process, {_PAPER} files in the job's process while it mixes. About 500
   sites reach the usual limit of 1,024.

FLARE takes messages in 64 threads, and each answer holds one until its tensors are there: 64 that came at the same moment
stood still until their requests had timed out. The job's process has threads for all of its sites.
Sites that wait for a task ask for one twice a second, more than 16 of them less often: 32 questions a second together.
"""  # noqa: E501


def _table(title: str, columns: dict[str, str], found: dict[str, Any]) -> list[str]:
    records = Records({case: {1: figures} for case, figures in found["cases"].items()})
    each = [case.partition("/") for case in found["cases"]]
    lines = [Line((NETWORKS[encoder], f"`{row}`"), f"{encoder}/{row}") for encoder, _, row in each]
    shown = [Column(one, name, show=_megabytes, scale=1e-6) for one, name in columns.items()]
    return [f"## {title}", "", *render_table(records, ["network", "row"], lines, shown, range(2, 2 + len(columns)))]


def _megabytes(values: Sequence[float], _places: int) -> str:
    return f"{values[0]:,.1f}"


def _many_sites(many: dict[str, Any]) -> list[str]:
    """The section on many sites: what was measured, and what 256 would need by the same figures."""
    cases = {
        int(case.split()[0]): {name: one["median"] for name, one in f.items()} for case, f in many["cases"].items()
    }
    names = [name for name in next(iter(cases.values())) if all(name in one for one in cases.values())]
    columns = {f"{sites} sites": partial(_median, one) for sites, one in cases.items()}
    lines = ["## Many sites", "", _MANY_HEAD, *listing(names, {"": str, **columns})]
    few, most = cases[min(cases)], cases[max(cases)]
    each = {name: (most[name] - few[name]) / (max(cases) - min(cases)) for name in names}
    at = {name: most[name] + (_PAPER - max(cases)) * each[name] for name in names}
    megabytes = most["MB an update"]
    lines += [
        f"{_PAPER} sites were not run; by what each further site costs between {min(cases)} and {max(cases)}:",
    ]
    words = _MANY_TAIL
    for name, value in (("JOB CPU s", at[JOB]), ("RELAY s", at[RELAY]), ("DISK GB", _PAPER * megabytes / 1000)):
        unit = name.partition(" ")[2]
        words = words.replace(name, f"{value:,.0f} {unit} (with ResNet-50 {value * 102.4 / megabytes:,.0f})")
    for name, figure in (("PEAK GB", PEAK), ("LASTING GB", RELAY_PEAK)):
        words = words.replace(name, f"{at[figure] / 1000:,.1f} GB")
    return [*lines, "", words, machine_line(many["machine"]), ""]


def _median(figures: Mapping[str, float], name: str) -> str:
    return number(figures[name])


def _size(folder: Path) -> float:
    return float(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))


if __name__ == "__main__":
    main(sys.argv[1:])
