"""The time of day only dates a run: no duration and no stamp is read from it, however it jumps."""

import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from bakeoff import results
from bakeoff.harness.virtual import VirtualEngine, VirtualWorld, run_in, virtual_experiment

ROOT = Path(results.__file__).parents[1]
EXPERIMENT = virtual_experiment(["a"], [{"concurrency": 2}], repeats=2, trial={"warm_up_s": 0.0, "duration_s": 2.0})
DATES = {
    "engines/environments/installation.py": "when an environment was made",
    "harness/calibration/grid.py": "when a calibration was made",
    "harness/conduct/kernels.py": "what torch's profiler stamps with, beside the monotonic clock",
    "harness/conduct/world.py": "when a run began and ended",
    "results/log/store.py": "the run's id",
    "workloads/chat_template.py": "a chat template that writes the date, as it does in the engine",
}
"""The only places of the four packages that may read the time of day."""
_READ = re.compile(r"\b(time\.time(_ns)?|(datetime|date)\.(now|utcnow|today))\(")


class Jumping(VirtualWorld):
    """A machine whose time of day is set back by an hour again and again."""

    reads = 0

    def now_utc(self) -> datetime:
        """Each time an hour earlier than it should be."""
        self.reads += 1
        return super().now_utc() - self.reads * timedelta(hours=1)


def test_a_clock_that_jumps_back_changes_no_number(tmp_path: Path):
    engines = {"a": VirtualEngine(trial_noise=0.01)}
    still = run_in(VirtualWorld(engines), EXPERIMENT, tmp_path / "still")
    jumping = run_in(Jumping(engines), EXPERIMENT, tmp_path / "jumping")
    assert jumping.manifest.ended_utc is not None
    assert jumping.manifest.ended_utc < jumping.manifest.created_utc
    assert [trial.record for trial in jumping.finished] == [trial.record for trial in still.finished]
    assert [trial.requests for trial in jumping.finished] == [trial.requests for trial in still.finished]
    assert [trial.metrics for trial in jumping.finished] == [trial.metrics for trial in still.finished]


@pytest.mark.parametrize("package", ["engines", "harness", "results", "workloads"])
def test_the_time_of_day_is_read_for_dates_only(package: str):
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in (ROOT / package).rglob("*.py")}
    reads = {place for place, text in texts.items() if _READ.search(text)}
    assert reads == {place for place in DATES if place.startswith(f"{package}/")}
