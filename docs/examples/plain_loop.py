"""FedUAA over three phantom hospitals in one process, without FLARE.

    python docs/examples/plain_loop.py [FOLDER]

State and results go to FOLDER (default: fedretina_runs). Called again with the same folder it goes on where it stopped,
or shows the finished run at once; the site's models lie in FOLDER/plain-loop/<site>/final/.
"""

from __future__ import annotations

import sys
from pathlib import Path

import fedretina

WORDS = {
    "row": "feduaa",  # any row that `fedretina methods` lists
    "phases": [{"name": "train", "rounds": 2}],
    "images": {"image_size": 64},
    "network": {"encoder": "efficientnet_lite0", "weights": {"source": "package"}},
    "training": {"batch_size": 8, "learning_rate": 0.05, "threads": 1},
    "phantom_images": 32,
}


def main(root: Path) -> None:
    """Train to the end and write the table."""
    experiment = fedretina.Experiment.resolve(WORDS)
    sites = {name: fedretina.load_site(name, experiment) for name in ("site-1", "site-2", "site-3")}
    results = fedretina.run_loop(experiment, sites, root, run="plain-loop")
    sys.stdout.write(fedretina.results_table(results) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "fedretina_runs"))
