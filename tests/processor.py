"""What decides a trained model's last digits: figures are compared to the last one only where they were printed."""

import re
from pathlib import Path

import torch

PRINTED_ON = "AMD EPYC, family 25, model 17, AVX512, torch 2.15.0"
"""Where the tutorials and the tables of the pages were printed."""

FIGURE = re.compile(r"-?\d+\.\d+|(?<=digest )[0-9a-f]{12}|(?<=model of )[\w-]+|\b(?:True|False)\b")
"""What a trained model makes of a printed text."""


def processor() -> str:
    """The processor of this machine with its generation, the instructions that torch uses, and torch's version."""
    cores = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    said = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in cores.splitlines()}
    name, family, model = (said.get(key, "?") for key in ("model name", "cpu family", "model"))
    used = f"{torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__.partition('+')[0]}"
    return f"{name}, family {family}, model {model}, {used}"
