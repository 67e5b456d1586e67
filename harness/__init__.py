"""The harness: plans, sends and judges the load of a benchmark run."""
