"""Makes the stored runs beside it: ``PYTHONPATH=CHECKOUT/src python make.py FOLDER``.

Run with the code of the commit whose runs are wanted; before 2026-11-27 the five packages had no common name, and
PYTHONPATH was the checkout itself. Small runs in virtual time, of every kind that a reader must go on reading.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

HAS_ONE_NAME = hasattr(import_module("bakeoff"), "__path__")


def module(now: str, before: str = "") -> Any:
    """A module by its name in `bakeoff`, or by its name in earlier checkouts."""
    return import_module(f"bakeoff.{now}" if HAS_ONE_NAME else before or now)


draws, engine, runs = (module(f"harness.virtual.{name}") for name in ("draws", "engine", "runs"))
comparison = module("results.compare.config", "results.comparison_config")
search, records = module("results.log.search", "results.search"), module("results.records")

PACE = draws.PerToken(draws.Exponential(0.05), draws.Fixed(0.01))
SLOWER = draws.PerToken(draws.Exponential(0.05), draws.Fixed(0.013))
SHORT = {"warm_up_s": 0.0, "duration_s": 2.0, "ramp_s": 0.2}


def made(root: Path) -> None:
    """Make all runs below a folder."""
    few = {"repeats": 2, "trial": SHORT}
    plain = runs.virtual_experiment(
        ["a", "b"], [{"concurrency": 2}, {"rate_per_s": 10.0, "arrival": "poisson"}], name="single-turns", **few
    )
    runs.virtual_run(
        plain, {"a": engine.VirtualEngine(service=PACE), "b": engine.VirtualEngine(service=SLOWER, slots=4)}, root
    )
    chats = {"name": "multi-turn", "options": {"scale": 0.02}}
    talk = runs.virtual_experiment(["a"], [{"concurrency": 3}], name="sessions", workload=chats, **few)
    runs.virtual_run(talk, {"a": engine.VirtualEngine(service=PACE, cache_block_tokens=16)}, root)
    thinks = engine.VirtualEngine(service=PACE)
    if hasattr(thinks, "kinds"):
        think = runs.virtual_experiment(["a"], [{"concurrency": 2}], name="reasoning", workload=chats, **few)
        runs.virtual_run(think, {"a": engine.VirtualEngine(service=PACE, kinds="3r3t")}, root)
    broken = runs.virtual_experiment(["a"], [{"concurrency": 2}], name="failures", **few)
    faults = {engine.Fault.HTTP_500: 0.02, engine.Fault.RESET: 0.02, engine.Fault.TRUNCATED: 0.02}
    runs.virtual_run(broken, {"a": engine.VirtualEngine(service=PACE, faults=faults, short_share=0.2)}, root)
    wanted = runs.virtual_experiment(["a"], [{"rate_per_s": 20.0, "arrival": "poisson"}], name="search", trial=SHORT)
    bounds = search.SearchConfig(
        engines=["a"], over=search.Over.RATE, low=5.0, high=80.0, template=records.Load(arrival="poisson"),
        slo="ttft_p90<200ms", trials=4,
    )  # fmt: skip
    runs.virtual_search(wanted, {"a": engine.VirtualEngine(service=PACE, slots=4)}, root, bounds)
    pair = runs.virtual_experiment(["old", "new"], [{"concurrency": 2}], name="gate", repeats=3, trial=SHORT)
    runs.virtual_gate(
        pair, {"old": engine.VirtualEngine(service=PACE), "new": engine.VirtualEngine(service=SLOWER)}, root,
        baseline="old", candidate="new", config=comparison.ComparisonConfig(),
    )  # fmt: skip


if __name__ == "__main__":
    made(Path(sys.argv[1]))
