"""Plans what a model needs before hardware is rented: memory, latency floors, cost, and the GPUs that keep an SLO.

Pure functions of a model's config.json, figures of a GPU, and optionally a measured run. docs/plan.md has the formulas.
"""
