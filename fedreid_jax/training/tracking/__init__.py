"""Trackers: metrics and images of a run for TensorBoard, MLflow and others."""
