"""An experiment: which engines, under which load, how often; read from TOML and expanded to an ordered plan."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from engines import Deployment, EngineSpec, check
from harness.errors import BadExperiment
from harness.verdict.machine_state import MAX_FOREIGN_SHARE
from results.records import Cache, Load, Slo, TrialPlan
from workloads import arrival, workload
from workloads.options import typed_options

_TRANSPORTS = ("http", "aiohttp")


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The model that every engine serves."""

    name: str | None = None
    """A known model (``bakeoff models list``), or the label of ``path``."""
    path: str | None = None
    """A checkpoint folder or a GGUF file."""
    tokenizer: str | None = None
    """A folder with the model's ``tokenizer.json``; the default is ``path``. ``approximate``: prompts are about as long
    as they should be, and tokens are those that the engine counts."""


class EngineConfig(Deployment, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One side of the bake-off: what it is, and where it runs."""

    adapter: str
    """``bakeoff engines list`` names them."""
    label: str | None = None
    """How tables call it; the default is the adapter's name."""
    options: dict[str, Any] = {}  # noqa: RUF012  (msgspec copies it)
    """The adapter's own options."""
    spec: EngineSpec = EngineSpec()
    """Settings that stand above the experiment's ``[spec]`` for this engine."""

    @property
    def shown(self) -> str:
        """The label, or the adapter's name."""
        return self.label or self.adapter


class WorkloadConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is sent."""

    name: str
    """``bakeoff workloads list`` names them."""
    options: dict[str, Any] = {}
    """The workload's own options."""


class TrialConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How each trial is run."""

    duration_s: float = 30.0
    """Length of the measured window, in seconds; longer where ``min_requests`` or three turnovers of a slot need it.
    A load that is meant to change is kept on for as long."""
    ramp_s: float = 5.0
    """The load is kept on at least so long before the window opens; it opens when what was sent first has ended."""
    max_window_s: float = 600.0
    """A trial that needs a longer window is INVALID."""
    min_requests: int = 5
    """The window is long enough for this many requests."""
    max_requests: int | None = None
    """The window's plan has at most this many sessions; one that ends early shortens the window."""
    warm_up_s: float = 60.0
    """After each launch of an engine, small requests are sent until it grows no faster, for at most so many seconds;
    0 leaves it out."""
    idle_s: float = 0.0
    """Seconds of sampling before the load with nothing running: the baseline of GPU energy, which needs 5."""
    timeout_s: float = 120.0
    """A request that has not ended after this many seconds counts as failed."""
    max_failure_share: float = 0.01
    """A trial with a larger share of failed requests is INVALID."""
    max_foreign_share: float = MAX_FOREIGN_SHARE
    """A trial during which foreign processes used a larger share of the time of all cores is INVALID; 1 voids none."""
    cache: Cache = Cache.COLD
    """What a prefix cache may hold when the load begins: ``cold``, ``primed`` (shared system prompts) or ``warm``."""


class ClientConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The measuring client."""

    workers: int = 1
    """Processes that send; more than one only where the report says that one is saturated."""
    ray: str | None = None
    """Address of a Ray cluster on whose nodes the workers run: ``auto`` or ``host:port``; without, this machine."""
    cores: list[int] = []
    """A core for each worker to be pinned to; empty leaves it to Linux."""
    transport: str = "http"
    """``http``, the raw one, or ``aiohttp``, to compare with."""
    calibrate: bool = True
    """Measure the client's own error after the first trial of each engine and level, at its pace: two seconds each."""
    max_error_share: float = 0.1
    """A trial whose client error or loop lag exceeds this share of its median TTFT or mean chunk gap is INVALID."""


class QualityConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whether engines say what the model says: a few answers of each trial are compared afterwards."""

    samples: int = 4
    """Answers of each trial; 0 leaves it out."""
    logprobs: bool = False
    """Ask for log-probabilities where an answer may be compared; engines may work more then: the load is touched."""
    limit_s: float = 600.0
    """The reference is given so long for the answers of one engine in one repeat; then it is stopped."""


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A whole experiment; its TOML file has the same names."""

    name: str
    """Label of the run; letters, digits, ``-`` and ``_``."""
    engines: list[EngineConfig]
    loads: list[Load]
    """Levels: ``concurrency = N``, or ``rate_per_s = R`` with ``arrival``."""
    workload: WorkloadConfig
    model: ModelConfig = ModelConfig()
    spec: EngineSpec = EngineSpec()
    """Settings that all engines share; each is told in its own words, and one that cannot do them is refused."""
    repeats: int = 3
    """Trials of each engine at each level; each repeat starts the engine afresh."""
    seed: int = 1
    trial: TrialConfig = TrialConfig()
    client: ClientConfig = ClientConfig()
    quality: QualityConfig = QualityConfig()
    slo: Slo = Slo()

    def plan(self) -> list[TrialPlan]:
        """The trials in the order in which they run.

        Every second repeat has the reverse order of engines and of levels, so that a drift of the machine falls on all
        of them alike, and no level always follows the same one.
        """
        trials: list[TrialPlan] = []
        levels = list(enumerate(self.loads, start=1))
        for repeat in range(1, self.repeats + 1):
            step = 1 if repeat % 2 else -1
            for side in self.engines[::step]:
                for level, load in levels[::step]:
                    trial_id = f"r{repeat}-{side.shown}-{level}"
                    trials.append(TrialPlan(trial_id, side.shown, self.workload.name, load, repeat))
        return trials

    def side(self, label: str) -> EngineConfig:
        """The engine of that label.

        Raises:
            KeyError: there is none.
        """
        return {side.shown: side for side in self.engines}[label]

    def spec_of(self, side: EngineConfig) -> EngineSpec:
        """What one engine is told: the shared settings, and its own above them. One that runs already is told nothing.

        Raises:
            BadExperiment: it runs already and has settings of its own.
        """
        if side.url is None:
            return self.spec.under(side.spec)
        if given := side.spec.given():
            raise BadExperiment(f"engine '{side.shown}' runs already and cannot be told {', '.join(given)}")
        return EngineSpec()

    def traffic_seed(self, load: Load) -> str:
        """Seed of one level's lengths and times: the same for every engine and repeat, different between levels."""
        return f"{self.seed}/{load.label}"


def load_experiment(path: Path) -> Experiment:
    """Read and check an experiment file.

    Raises:
        BadExperiment: it is missing, not TOML, has an unknown key (the nearest is named) or contradicts itself.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadExperiment(f"{path} does not exist; give the path of an experiment file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadExperiment(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise BadExperiment(f"{path} is not TOML: {error}") from error
    return experiment_from(data, str(path))


def experiment_from(data: dict[str, Any], owner: str) -> Experiment:
    """Check an experiment given as plain data.

    Raises:
        BadExperiment: as :func:`load_experiment`.
        EngineError, WorkloadError: an engine, a workload or one of their options is unknown.
    """
    experiment = typed_options(Experiment, data, owner, BadExperiment)
    problem = _problem(experiment)
    if problem:
        raise BadExperiment(f"{owner}: {problem}")
    for side in experiment.engines:
        check(side.adapter, side.options, experiment.spec_of(side), side)
    workload(experiment.workload.name, experiment.workload.options)
    for load in experiment.loads:
        if load.arrival not in {None, "workload"}:
            arrival(load.arrival or "", load.rate_per_s or 0.0, load.arrival_options)
    return experiment


def with_client(experiment: Experiment, workers: int | None, ray: str | None) -> Experiment:
    """The experiment with another client; None leaves a value as it is.

    Raises:
        BadExperiment: the two contradict the rest.
    """
    wanted = {name: value for name, value in (("workers", workers), ("ray", ray)) if value is not None}
    changed = msgspec.structs.replace(experiment, client=msgspec.structs.replace(experiment.client, **wanted))
    if problem := _problem(changed):
        raise BadExperiment(problem)
    return changed


def _problem(experiment: Experiment) -> str | None:
    """The first thing that is wrong, or None."""
    for load in experiment.loads:
        if complaint := _load_problem(load):
            return complaint
    labels = [side.shown for side in experiment.engines]
    checks = (
        (_is_name(experiment.name), "name may hold letters, digits, '.', '-' and '_' only"),
        (bool(labels), "engines is empty; give at least one [[engines]]"),
        (len(set(labels)) == len(labels), f"two engines share a label ({', '.join(labels)}); set label"),
        (all(map(_is_name, labels)), "an engine's label may hold letters, digits, '.', '-' and '_' only"),
        (bool(experiment.loads), "loads is empty; give at least one [[loads]]"),
        (experiment.repeats >= 1, "repeats must be at least 1"),
        (experiment.trial.duration_s > 0, "trial.duration_s must be above 0"),
        (0 <= experiment.trial.max_foreign_share <= 1, "trial.max_foreign_share must lie between 0 and 1"),
        (experiment.trial.warm_up_s >= 0, "trial.warm_up_s must not be negative"),
        (experiment.client.workers >= 1, "client.workers must be at least 1"),
        (_is_cluster(experiment.client.ray), "client.ray must be 'auto' or the host:port of a Ray cluster's head"),
        (experiment.client.transport in _TRANSPORTS, f"client.transport must be one of {', '.join(_TRANSPORTS)}"),
        (
            len(experiment.client.cores) in {0, experiment.client.workers},
            "client.cores must name one core for each of client.workers",
        ),
        (experiment.quality.samples >= 0, "quality.samples must not be negative"),
        (experiment.quality.limit_s > 0, "quality.limit_s must be above 0"),
        (experiment.trial.ramp_s >= 0, "trial.ramp_s must not be negative"),
        (
            experiment.trial.max_window_s >= experiment.trial.duration_s,
            "trial.max_window_s must be at least trial.duration_s",
        ),
        (
            experiment.trial.max_requests is None or experiment.trial.max_requests >= 1,
            "trial.max_requests must be at least 1",
        ),
        (len({load.label for load in experiment.loads}) == len(experiment.loads), "two loads are the same"),
    )
    return next((complaint for good, complaint in checks if not good), None)


def _load_problem(load: Load) -> str | None:
    slots, rate, cap = load.concurrency, load.rate_per_s, load.max_in_flight
    as_recorded = load.arrival == "workload"
    checks = (
        (rate is None or rate > 0, f"rate_per_s must be above 0, not {rate}"),
        (slots is not None or load.arrival or rate is None, "a load with rate_per_s needs arrival, such as 'poisson'"),
        ((slots is None) != (load.arrival is None), "a load has either concurrency or rate_per_s with arrival"),
        (slots is None or slots >= 1, f"concurrency must be at least 1, not {slots}"),
        (slots is None or rate is None, "rate_per_s belongs to a load with arrival, not to one with concurrency"),
        (slots is not None or as_recorded or rate is not None, f"arrival '{load.arrival}' needs rate_per_s"),
        (load.time_warp is None or as_recorded, "time_warp belongs to a load with arrival = 'workload'"),
        (load.time_warp is None or rate is None, "a load has either time_warp or rate_per_s"),
        (load.time_warp is None or load.time_warp > 0, f"time_warp must be above 0, not {load.time_warp}"),
        (not load.arrival_options or not (as_recorded or slots), "arrival_options belong to a named arrival process"),
        (cap is None or slots is None, "max_in_flight belongs to a load with arrival"),
        (cap is None or cap >= 1, f"max_in_flight must be at least 1, not {cap}"),
    )
    return next((complaint for good, complaint in checks if not good), None)


def _is_cluster(address: str | None) -> bool:
    host, _, port = (address or "auto").rpartition(":")
    return address in {None, "", "auto"} or (bool(host) and "/" not in host and port.isdecimal())


def _is_name(text: str) -> bool:
    return bool(text) and text.replace("-", "").replace("_", "").replace(".", "").isalnum() and text[0] != "."
