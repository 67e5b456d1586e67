"""Noise floor of a machine: an upper bound on how much identical runs differ there from hour to hour.

It is measured by A/A runs (one engine at one commit, freshly started each time, at least an hour apart) and stored next
to them. A gate with a baseline of one or two runs has no other estimate of the noise between runs.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bakeoff.results.compare.comparability import Series
from bakeoff.results.errors import UNDECODABLE, NoEvidence, RunUnreadable
from bakeoff.results.files.atomic import write_atomic
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.statistics.between_runs import MIN_FLOOR_RUNS, NoiseFloor, run_means, upper_bound
from bakeoff.results.statistics.comparison import scale_of
from bakeoff.results.statistics.two_sample import Scale

FLOOR_FILE = "noise-floor.json"
_APART_S = 3600.0
_VERSION = 1


class FloorCell(msgspec.Struct, frozen=True):
    """The floor of one series.

    Attributes:
        series: the series it applies to.
        runs: ids of the runs it was computed from, oldest first.
        trials: trials per run, harmonic mean.
        bounds: metric → 99 % upper bound on the standard deviation of run means, on the metric's scale.
    """

    series: Series
    runs: list[str]
    trials: float
    bounds: dict[str, float]

    def of(self, metric: str) -> NoiseFloor | None:
        """Noise floor of one metric; None if it was not measured."""
        bound = self.bounds.get(metric)
        return None if bound is None else NoiseFloor(bound, self.trials)


class _File(msgspec.Struct, frozen=True):
    version: int
    cells: list[FloorCell]


class _Version(msgspec.Struct, frozen=True):
    version: int


def stored_floors(root: Path) -> list[FloorCell]:
    """Read the noise floors stored in a folder of runs; empty if none are stored.

    Raises:
        RunUnreadable: the file is damaged or has another version.
    """
    path = root / FLOOR_FILE
    if not path.is_file():
        return []
    try:
        data = path.read_bytes()
        version = msgspec.json.decode(data, type=_Version).version
        if version != _VERSION:
            raise RunUnreadable(f"{path} has version {version}, not {_VERSION}; measure it again: bakeoff lab floor")
        return msgspec.json.decode(data, type=_File).cells
    except (OSError, *UNDECODABLE) as error:
        raise RunUnreadable(f"{path} is damaged ({error}); measure it again: bakeoff lab floor") from error


def store_floors(root: Path, cells: Sequence[FloorCell]) -> Path:
    """Store noise floors in a folder of runs, replacing those of the same series.

    Raises:
        RunUnreadable: as for :func:`stored_floors`.
        NotWritable: the folder cannot be written.
    """
    new = {cell.series for cell in cells}
    stored = [cell for cell in stored_floors(root) if cell.series not in new]
    path = root / FLOOR_FILE
    write_atomic(path, msgspec.json.format(msgspec.json.encode(_File(_VERSION, [*stored, *cells])), indent=1) + b"\n")
    return path


def floor_cell(series: Series, runs: Mapping[str, Sequence[Mapping[str, float | None]]]) -> FloorCell:
    """The floor of one series.

    Args:
        series: the series.
        runs: run id → metrics of each of its valid trials, oldest first; None for a metric that a trial lacks.
    """
    bounds: dict[str, float] = {}
    for name, metric in CATALOGUE.items():
        values = [[trial[name] for trial in trials] for trials in runs.values()]
        known_values = [[value for value in of_run if value is not None] for of_run in values]
        if any(len(present) < len(of_run) for present, of_run in zip(known_values, values, strict=True)):
            continue
        scale = scale_of(metric)
        if scale is Scale.DIFFERENCE or all(value > 0 for of_run in known_values for value in of_run):
            bounds[name] = upper_bound(run_means(known_values, scale).tolist())
    trials = len(runs) / sum(1 / len(of_run) for of_run in runs.values())
    return FloorCell(series, list(runs), trials, bounds)


def apart(created_utc: Mapping[str, str]) -> list[str]:
    """Select runs that started at least an hour apart, oldest first.

    Args:
        created_utc: run id → start, ISO 8601.

    Raises:
        NoEvidence: there are too few for a noise floor.
    """
    chosen: list[str] = []
    last: datetime | None = None
    moments = {run: moment_of(text) for run, text in created_utc.items()}
    for run, moment in sorted(moments.items(), key=lambda item: item[1]):
        if last is None or (moment - last).total_seconds() >= _APART_S:
            chosen.append(run)
            last = moment
    if len(chosen) < MIN_FLOOR_RUNS:
        raise NoEvidence(
            f"a noise floor needs {MIN_FLOOR_RUNS} runs at least an hour apart, there are {len(chosen)}; "
            "repeat the experiment at other hours"
        )
    return chosen


def moment_of(iso: str) -> datetime:
    """Parse a start time; runs imported from other tools have no time zone."""
    moment = datetime.fromisoformat(iso)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
