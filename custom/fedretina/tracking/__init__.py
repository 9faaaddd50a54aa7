"""Watching a run as it goes: curves for TensorBoard, MLflow or Weights & Biases, and log lines for machines."""
