"""Watching a run as it goes: curves for TensorBoard or MLflow, and log lines for machines."""
