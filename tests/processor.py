"""What decides a trained model's last digits: figures are compared to the last one only where they were printed."""

import re
from pathlib import Path

import torch

PRINTED_ON = "AMD EPYC, AVX512, torch 2.15.0"
"""Where the tutorials and the tables of the pages were printed."""

FIGURE = re.compile(r"-?\d+\.\d+|(?<=digest )[0-9a-f]{12}|(?<=model of )[\w-]+|\b(?:True|False)\b")
"""What a trained model makes of a printed text."""


def processor() -> str:
    """The processor of this machine, the instructions that torch uses on it, and torch's version."""
    cores = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    name = cores.partition("model name")[2].partition("\n")[0].strip(" \t:")
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__.partition('+')[0]}"
