"""How good a model is: ranking, agreement, calibration and the detection of errors."""
