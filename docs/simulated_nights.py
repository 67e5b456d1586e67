"""Nightly runs and gates of virtual engines (:mod:`bakeoff.harness.virtual`), for the pictures of the dashboard."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import msgspec

from bakeoff.harness.conduct.world import Provenance
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.virtual import (
    Exponential,
    Fixed,
    PerToken,
    VirtualEngine,
    VirtualWorld,
    gate_in,
    run_in,
    virtual_experiment,
)
from bakeoff.results import Run
from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.log.run_log import Source
from bakeoff.results.records import TelemetryRecord
from bakeoff.results.units import NS_PER_S

MAIN, CANDIDATE = "main", "candidate"
NIGHTS = 14
_SLOWER_FROM = 9
_SLOWDOWN = 1.08
_WORKLOAD = {"name": "random", "options": {"input_tokens": 32, "output_tokens": 24}}
_TRIAL = {"warm_up_s": 0.0, "ramp_s": 1.0, "duration_s": 20.0}
_MEMORY_NS = 25 * NS_PER_S
_A = VirtualEngine(
    service=PerToken(Fixed(0.045), Exponential(0.011)), start_noise=0.005, trial_noise=0.004, start_s=8.0
)
_B = msgspec.structs.replace(_A, service=PerToken(Fixed(0.06), Exponential(0.008)))


class MemoryProbe:
    """Memory of a simulated engine, in bytes.

    Args:
        seed: of its noise.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def read(self, t_ns: int) -> list[TelemetryRecord]:
        """One record; its value changes about once a trial."""
        rng = Random(f"{self._seed}/{t_ns // _MEMORY_NS}")
        return [TelemetryRecord(t_ns, "engine", {"rss_bytes": round(rng.gauss(1.1, 0.005) * 2**30)})]


class DatedWorld(VirtualWorld):
    """A virtual world with a date and a commit.

    Args:
        engines: by the labels of the experiment.
        day: days after the first night; seeds the engines' random draws, too.
        branch: of the commit.
    """

    def __init__(self, engines: Mapping[str, VirtualEngine], day: float, branch: str) -> None:
        seed = round(24 * day)
        super().__init__(engines, seed=seed, probes=[MemoryProbe(seed)])
        self._offset = datetime(2026, 11, 1, 2, 0, tzinfo=UTC) + timedelta(days=day) - super().now_utc()
        self._source = Source(f"{Random(seed).getrandbits(160):040x}", branch)

    def now_utc(self) -> datetime:
        """Virtual time, counted from this world's date."""
        return super().now_utc() + self._offset

    def provenance(self) -> Provenance:
        """A simulated machine."""
        return Provenance(0, "simulated", self._source.commit, self._source, {"gpus": None})


def simulate_nights(root: Path) -> None:
    """Simulate nightly runs of two engines, of which the second becomes slower one night."""
    experiment = _experiment("nightly", ["engine-a", "engine-b"], repeats=3)
    for night in range(NIGHTS):
        engines = {"engine-a": _A, "engine-b": _slower(_B) if night >= _SLOWER_FROM else _B}
        run_in(DatedWorld(engines, night, MAIN), experiment, root)


def simulate_gates(root: Path) -> Run:
    """Simulate gates of two changes; returns the run of the second one, which makes the engine slower."""
    experiment = _experiment("gate", [MAIN, CANDIDATE], repeats=6)
    changes = (("shorter-prefill", 10.4, _A), ("new-scheduler", 13.3, _slower(_A)))
    runs = [
        gate_in(
            DatedWorld({MAIN: _A, CANDIDATE: engine}, day, branch), experiment, root,
            baseline=MAIN, candidate=CANDIDATE, config=ComparisonConfig(),
        )[0]
        for branch, day, engine in changes
    ]  # fmt: skip
    return runs[-1]


def _experiment(name: str, labels: list[str], *, repeats: int) -> Experiment:
    loads = [{"concurrency": 8}]
    return virtual_experiment(labels, loads, name=name, workload=_WORKLOAD, trial=_TRIAL, repeats=repeats)


def _slower(engine: VirtualEngine) -> VirtualEngine:
    return msgspec.structs.replace(engine, slowdown=_SLOWDOWN)
