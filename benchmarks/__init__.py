"""Timings and sizes of fedretina, each beside something that a reader knows; `python -m benchmarks` runs them."""
