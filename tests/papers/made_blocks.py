"""Tiny plans of blocks on phantoms."""

import yaml

from fedretina.settings.plan import merged
from fedretina_papers.blocks.plan import BlockPlan
from fedretina_papers.plan import preset

TINY = {
    "cases": [{"name": "like", "title": "Like", "hospitals": {"site-1": 2, "site-4": 1}}],
    "sizes": [16],
    "skips": {},
    "draws": 2,
    "least": 2,
    "resamples": 20,
    "tuning_size": 16,
    "experiment": {
        "images": {"image_size": 32},
        "network": {"weights": {"source": "none"}},
        "phases": [{"name": "train", "rounds": 2}],
    },
}


def tiny(**changes):
    settings = merged(preset("e1"), {**TINY, "sites": {"site-1": None, "site-4": None}})
    ways = ("singleset_temperature", "singleset_dropout", "singleset_ensemble")
    kept = ("majority", "probe", "singleset", *ways, "sums_both", "fedavg", "pooled")
    rows = [
        {**row, "tune": []} | ({"members": 2} if row["kind"] == "ensemble" else {})
        for row in settings["rows"]
        if row["name"] in kept
    ]
    made = [("", "federated", ["sums_both", "fedavg"]), ("own", "alone", ["probe", "singleset"])]
    several = [
        {"name": f"{own}{kind}", "title": f"{own} {kind}", "kind": kind, "role": role, "parts": parts}
        for own, role, parts in made
        for kind in ("mean", "joined")
    ]
    return {**settings, "rows": [*rows, *several], **changes}


def f3(folder):
    """Whole networks and frozen ones in a tiny form, one of them tuned."""
    file = folder / "site.yaml"
    file.write_text(yaml.safe_dump({"data": {"scheme": "normal_3stages", "phantom_images": 64}}))
    settings = merged(preset("f3"), {**TINY, "sites": {"site-1": None, "site-4": str(file)}, "sizes": ["all"]})
    settings["cases"] = [{"name": "two", "title": "Two", "hospitals": {"site-1": 1, "site-4": 1}}]
    settings["only"] = {}
    values = [{"setting": "training.learning_rate", "values": [1e-3, 2e-3, 4e-3], "factor": 2, "grows": 0}]
    tuned = {"singleset": values}
    return BlockPlan.read(
        {**settings, "rows": [{**row, "tune": tuned.get(row["name"], [])} for row in settings["rows"]]}
    )
