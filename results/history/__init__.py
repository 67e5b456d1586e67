"""Runs over time: the baseline of a branch, and the steps and drifts of a metric."""
