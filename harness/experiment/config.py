"""Experiments: which engines, under which loads, how often; read from TOML and expanded to an ordered plan."""

import math
import tomllib
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import msgspec

from bakeoff.engines import Deployment, EngineSpec, check, records_requests
from bakeoff.engines.request_shape import RequestShape
from bakeoff.engines.secrets import MASK
from bakeoff.harness.client.live_history import History
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.faults import Fault, overlap_of, problem_of_engine, problem_of_fault
from bakeoff.harness.experiment.grid import with_grids
from bakeoff.harness.host.machine_state import MAX_FOREIGN_SHARE
from bakeoff.harness.rules.rule_set import STEADY, Rules, Start, rules_named, with_rules
from bakeoff.results.log.store import RunFolder
from bakeoff.results.prices import Prices, TokenPrices
from bakeoff.results.records import Cache, GridPoint, Load, Slo, TrialPlan
from bakeoff.workloads import VARYING_ARRIVALS, Workload, arrival, workload
from bakeoff.workloads.mix import Mix, Part
from bakeoff.workloads.models import ModelShare
from bakeoff.workloads.options import typed_options

_TRANSPORTS = ("http", "aiohttp")
MAX_SECONDS = 1e6
MAX_SLOTS = 100_000
"""Most live sessions of a load: each needs a socket, and a prompt that is planned before the load."""
MAX_RATE_PER_S = 100_000.0
MAX_PLANNED = 1_000_000
"""Most requests of one part of a trial's plan. Planning takes about a millisecond for each."""
MAX_WORKERS = 1024
MAX_TIME_WARP = 1e6
CLASSES = "classes"
"""Name of the workload in tables where the traffic has classes."""
_OF_CLASSES = {"name": CLASSES}
Seconds = Annotated[float, msgspec.Meta(le=MAX_SECONDS)]
"""Finite, like every number with a bound: NaN satisfies none."""


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The model that every engine serves."""

    name: str | None = None
    """A known model (``bakeoff models list``), or the label of ``path``."""
    path: str | None = None
    """Checkpoint folder or GGUF file."""
    tokenizer: str | None = None
    """Folder with the model's ``tokenizer.json``. Default: ``path``, else that of a cached model called ``name``. With
    ``approximate``, prompts have about the requested length, and token counts are the engine's."""


class EngineConfig(Deployment, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One engine under test: its adapter and settings, and where it runs."""

    adapter: str
    """One of ``bakeoff engines list``."""
    label: str | None = None
    """Name in tables. Default: the adapter's name."""
    options: dict[str, Any] = {}  # noqa: RUF012  (msgspec copies it)
    """The adapter's own options."""
    spec: EngineSpec = EngineSpec()
    """Settings that override the experiment's ``[spec]`` for this engine."""
    request: RequestShape = RequestShape()
    """What its requests carry, over the experiment's ``[request]``."""
    prices: Prices = Prices()
    """What it costs, over the experiment's ``[prices]``."""
    grid: dict[str, list[Any]] = {}  # noqa: RUF012  (msgspec copies it)
    """Settings, such as ``spec.max_num_seqs``, and their values: an engine for each combination; empty in these."""
    point: GridPoint | None = None
    """The combination that the engine is; None without a grid."""
    loads: list[str] = []  # noqa: RUF012  (msgspec copies it)
    """Labels of the levels that this engine is measured at, such as ``c=8``. Default: all."""

    @property
    def name(self) -> str:
        """Name in tables and trial ids: the label, or else the adapter's name."""
        return self.label or self.adapter


class WorkloadConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The traffic that every engine gets."""

    name: str
    """One of ``bakeoff workloads list``."""
    options: dict[str, Any] = {}
    """The workload's own options."""
    models: list[ModelShare] = []
    """Models, or adapters such as LoRA, that the sessions are sent to by their weights. Default: the engine's one."""
    history: History = History.RECORDED
    """Which answers later calls of a conversation hold: the workload's own, or those that the engine gave, as text
    (``live``) or as token ids (``live-ids``); chats only."""


class ClassWorkload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a class sends."""

    name: str
    """One of ``bakeoff workloads list``."""
    options: dict[str, Any] = {}
    """The workload's own options."""


class TrafficClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Sessions of one kind or tenant among those of others."""

    name: str
    """In tables; letters, digits, ``.``, ``-`` and ``_``."""
    workload: ClassWorkload
    """What it sends."""
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    """Its share of the sessions, relative to the others."""
    model: str | None = None
    """Model or adapter, such as a LoRA, that its requests name. Default: the engine's."""
    request: RequestShape = RequestShape()
    """What its requests carry, such as a priority, over the engine's and the experiment's."""
    slo: Slo = Slo()
    """Its own SLO. Default: the experiment's."""


class TrialConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Durations and limits of each trial."""

    duration_s: Seconds = 30.0
    """Seconds of the measured window; longer if ``min_requests`` or three turnovers of a slot need it. With varying or
    recorded arrivals, the length of the whole load."""
    ramp_s: Seconds = 5.0
    """Minimum seconds of load before the window, which opens once the first requests of the load have ended."""
    max_window_s: Seconds = 600.0
    """A trial that needs a longer window is INVALID."""
    min_requests: Annotated[int, msgspec.Meta(ge=0, le=MAX_PLANNED)] = 5
    """The window is extended until this many requests fit."""
    max_requests: Annotated[int, msgspec.Meta(le=10**9)] | None = None
    """Maximum sessions in the window's plan; a plan that ends early shortens the window."""
    warm_up_s: Seconds = 60.0
    """Maximum seconds of warm-up after each launch: small requests until the engine stops getting faster. 0: none."""
    idle_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)] = 0.0
    """Seconds of telemetry before the load, while nothing runs: the baseline of GPU energy, which needs 5."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)] = 120.0
    """A request that takes longer than this many seconds counts as failed."""
    max_failure_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    """A trial with a larger share of failed requests is INVALID."""
    max_foreign_share: float = MAX_FOREIGN_SHARE
    """A trial is INVALID if other processes use more than this share of all CPU time; 1 disables the check."""
    cache: Cache = Cache.COLD
    """What the prefix cache may hold when the load begins: ``cold``, ``primed`` (shared system prompts) or ``warm``."""


class ClientConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The measuring client."""

    workers: Annotated[int, msgspec.Meta(le=MAX_WORKERS)] = 1
    """Worker processes; use more than one only if the report says that one is saturated."""
    ray: str | None = None
    """Ray cluster that runs the workers: ``auto`` or ``host:port``. Default: this machine."""
    cores: list[Annotated[int, msgspec.Meta(ge=0, le=65_535)]] = []
    """CPU core of each worker; empty: not pinned."""
    transport: str = "http"
    """``http``: our own HTTP client; ``aiohttp``: for comparison."""
    calibrate: bool = True
    """Measure the client's own error after the first trial of each engine and level, at that trial's pace. Takes two
    seconds each."""
    max_error_share: Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)] = 0.1
    """A trial whose client error or loop lag exceeds this share of its median TTFT or mean chunk gap is INVALID."""


class QualityConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Output quality: compare a few answers of each trial with the reference model afterwards."""

    samples: Annotated[int, msgspec.Meta(le=MAX_PLANNED)] = 4
    """Answers compared per trial; 0 disables the check."""
    logprobs: bool = False
    """Request log-probabilities for the compared answers, which may slow the engine and so change the measurement."""
    limit_s: Seconds = 600.0
    """Maximum seconds of the reference model for one engine's answers in one repeat."""


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An experiment; the keys of its TOML file are these fields."""

    name: str
    """Name of its runs; letters, digits, ``.``, ``-`` and ``_``."""
    engines: list[EngineConfig]
    loads: list[Load]
    """Load levels: ``concurrency = N``, or ``rate_per_s = R`` with ``arrival``; of one class alone with ``only``."""
    workload: WorkloadConfig
    classes: list[TrafficClass] = []
    """Classes that share the load, each with sessions, requests and an SLO of its own; in place of ``workload``."""
    rules: str = STEADY
    """Rules of play of sessions: one of ``bakeoff rules``, or the path of a file that ends in ``.toml``. They set what
    the experiment leaves out, such as ``trial.duration_s``."""
    model: ModelConfig = ModelConfig()
    spec: EngineSpec = EngineSpec()
    """Settings for all engines. Adapters translate them; an engine that does not support one is refused."""
    request: RequestShape = RequestShape()
    """What requests carry besides the workload's prompt and length: sampling, reasoning, tools, headers, …"""
    repeats: Annotated[int, msgspec.Meta(le=10_000)] = 3
    """Trials of each engine at each level; each repeat restarts the engine."""
    seed: int = 1
    trial: TrialConfig = TrialConfig()
    client: ClientConfig = ClientConfig()
    quality: QualityConfig = QualityConfig()
    slo: Slo = Slo()
    faults: list[Fault] = []
    """Faults that are caused in the window of every trial."""
    prices: Prices = Prices()
    """What each engine costs: a GPU hour, another machine's hour, tokens."""
    api_prices: TokenPrices = TokenPrices()
    """What an API bills for the same tokens: the alternative that costs are compared with."""
    profile: bool = False
    """Follow the first trial of each engine and level by one in which the engine records its steps or exports spans
    (``bakeoff profile``); no metric counts it."""
    kernels: bool = False
    """Record kernels for a second after each profiled trial, by torch's profiler, for its trace."""

    def plan(self) -> list[TrialPlan]:
        """The trials in the order in which they run.

        Every second repeat reverses the order of engines and of levels, so that machine drift affects all of them
        equally and no level always follows the same one.
        """
        trials: list[TrialPlan] = []
        levels = list(enumerate(self.loads, start=1))
        for repeat in range(1, self.repeats + 1):
            step = 1 if repeat % 2 else -1
            for engine in self.engines[::step]:
                for level, load in levels[::step]:
                    if not engine.loads or load.label in engine.loads:
                        trial_id = f"r{repeat}-{engine.name}-{level}"
                        plan = TrialPlan(trial_id, engine.name, load.only or self.workload.name, load, repeat)
                        trials.append(plan)
                        if self.profile and repeat == 1 and records_requests(engine.adapter):
                            trials.append(msgspec.structs.replace(plan, id=f"{trial_id}-profiled", profiled=True))
        return trials

    def engine(self, name: str) -> EngineConfig:
        """The engine of this name.

        Raises:
            KeyError: the experiment has no such engine.
        """
        return {engine.name: engine for engine in self.engines}[name]

    def request_of(self, engine: EngineConfig) -> RequestShape:
        """What the engine's requests carry: the shared shape, overridden by its own."""
        return self.request.under(engine.request)

    def faults_of(self, engine: EngineConfig) -> list[Fault]:
        """The faults that befall an engine, in order of time."""
        own = [fault for fault in self.faults if fault.engine in {None, engine.name}]
        return sorted(own, key=lambda fault: fault.at_s)

    def requests_of(self, engine: EngineConfig) -> list[RequestShape]:
        """What its requests carry, in each class of the traffic."""
        shape = self.request_of(engine)
        return [shape.under(each.request) for each in self.classes] or [shape]

    def source(self, only: str | None = None) -> Workload:
        """The sessions that every engine gets.

        Args:
            only: name of a class; None for all.

        Raises:
            WorkloadError: a workload or one of its options is unknown.
        """
        if not self.classes:
            return workload(self.workload.name, self.workload.options)
        chosen = (each for each in self.classes if only in {None, each.name})
        return Mix(
            [Part(each.name, each.weight, workload(each.workload.name, each.workload.options)) for each in chosen]
        )

    def slo_of_class(self, name: str) -> Slo:
        """The SLO of a class: its own, or else the experiment's."""
        (own,) = [each.slo for each in self.classes if each.name == name]
        return self.slo if own == Slo() else own

    def prices_of(self, engine: EngineConfig) -> Prices:
        """What the engine costs: the shared prices, overridden by its own."""
        return self.prices.under(engine.prices)

    def spec_of(self, engine: EngineConfig) -> EngineSpec:
        """The settings to launch an engine with: the shared ones, overridden by its own; none for a running server.

        Raises:
            BadExperiment: a running server has settings of its own.
        """
        if not engine.addresses:
            return self.spec.under(engine.spec)
        if options := engine.spec.given():
            raise BadExperiment(
                f"engine '{engine.name}' is a running server, whose {', '.join(options)} cannot be set; remove its spec"
            )
        return EngineSpec()

    @property
    def rules_of_play(self) -> Rules:
        """The rules by which sessions are played.

        Raises:
            BadExperiment: there are no such rules.
        """
        return rules_named(self.rules)

    def traffic_seed(self, load: Load) -> str:
        """Seed of one level's lengths and arrival times: equal for all engines and repeats, but not between levels."""
        return f"{self.seed}/{load.label}"


def is_steady(load: Load) -> bool:
    """Whether a load is constant and so has ramp, window and tail; varying loads and recorded arrivals are not."""
    return load.concurrency is not None or load.arrival not in {"workload", *VARYING_ARRIVALS}


def load_experiment(path: Path) -> Experiment:
    """Read and check an experiment file, or the experiment of a run folder.

    Raises:
        BadExperiment: it is missing, not TOML, has an unknown key or contradicts itself, or the run concealed a key.
        ResultsError: the folder is no run, or damaged.
    """
    if path.is_dir():
        data = RunFolder.open(path).read_manifest().experiment
        if MASK in repr(data):
            raise BadExperiment(
                f"{path} conceals a key of its experiment; give the experiment's file, or repeat the bench command"
            )
        return experiment_from(data, str(path))
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadExperiment(f"{path} does not exist; give the path of an experiment file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadExperiment(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise BadExperiment(f"{path} is not TOML: {error}") from error
    except RecursionError as error:
        raise BadExperiment(f"{path} is nested too deeply to be an experiment") from error
    return experiment_from(data, str(path))


def loaded_experiment(source: "str | PathLike[str] | dict[str, Any] | Experiment") -> Experiment:
    """An experiment as a program gives it: a TOML file, a dict of the same structure, or an :class:`Experiment`.

    Raises:
        BadExperiment: as :func:`load_experiment`.
        EngineError, WorkloadError: an engine, a workload or one of their options is unknown.
    """
    if isinstance(source, Experiment):
        has_grid = any(engine.grid for engine in source.engines)
        return experiment_from(msgspec.to_builtins(source), "experiment") if has_grid else source
    return experiment_from(source, "experiment") if isinstance(source, dict) else load_experiment(Path(source))


def experiment_from(data: dict[str, Any], owner: str) -> Experiment:
    """Build and check an experiment from plain data.

    Args:
        data: as in the TOML file.
        owner: names the data in error messages.

    Raises:
        BadExperiment: as :func:`load_experiment`.
        EngineError, WorkloadError: an engine, a workload or one of their options is unknown.
    """
    plain = with_grids(with_rules(data), owner)
    if data.get("classes"):
        if data.get("rules", STEADY) != STEADY:
            raise BadExperiment(
                f"{owner}: classes are played by the rules '{STEADY}' alone; leave out rules or classes"
            )
        if data.get("workload", _OF_CLASSES) != _OF_CLASSES:
            raise BadExperiment(f"{owner}: classes say what is sent; leave out workload")
        plain["workload"] = _OF_CLASSES
    experiment = typed_options(Experiment, plain, owner, BadExperiment)
    problem = _problem(experiment)
    if problem:
        raise BadExperiment(f"{owner}: {problem}")
    for engine in experiment.engines:
        for shape in experiment.requests_of(engine):
            check(engine.adapter, engine.options, experiment.spec_of(engine), engine, shape)
    experiment.source()
    for load in experiment.loads:
        if load.arrival not in {None, "workload"}:
            arrival(load.arrival or "", load.rate_per_s or 0.0, load.arrival_options)
    return experiment


def with_client(experiment: Experiment, workers: int | None, ray: str | None) -> Experiment:
    """The experiment with another client; None keeps the experiment's value.

    Raises:
        BadExperiment: the new values contradict the rest.
    """
    overrides = {name: value for name, value in (("workers", workers), ("ray", ray)) if value is not None}
    changed = msgspec.structs.replace(experiment, client=msgspec.structs.replace(experiment.client, **overrides))
    if problem := _problem(changed):
        raise BadExperiment(problem)
    return changed


def profiling(experiment: Experiment) -> Experiment:
    """The experiment with profiled trials.

    Raises:
        BadExperiment: none of its engines records its steps or exports spans, or one has several addresses.
    """
    if not any(records_requests(engine.adapter) for engine in experiment.engines):
        names = ", ".join(engine.name for engine in experiment.engines)
        raise BadExperiment(f"no engine can be profiled ({names}); profile the adapter 'reference' or 'vllm'")
    profiled = msgspec.structs.replace(experiment, profile=True)
    if problem := _problem(profiled):
        raise BadExperiment(problem)
    return profiled


def _problem(experiment: Experiment) -> str | None:
    """The first contradiction or value out of range; None if there is none."""
    for load in experiment.loads:
        if problem := _load_problem(load) or _plan_problem(load, experiment.trial):
            return problem
    if problem := _rules_problem(experiment) or _faults_problem(experiment):
        return problem
    labels = [engine.name for engine in experiment.engines]
    levels = [load.label for load in experiment.loads]
    for engine in experiment.engines:
        if unknown := [label for label in engine.loads if label not in levels]:
            return f"engine '{engine.name}' has the load '{unknown[0]}', which is none of {', '.join(levels)}"
    checks = (
        (_is_name(experiment.name), "name may only have letters, digits, '.', '-' and '_', and not begin with '.'"),
        (bool(labels), "engines is empty; give at least one [[engines]]"),
        (len(set(labels)) == len(labels), f"two engines share a label ({', '.join(labels)}); set label"),
        (all(map(_is_name, labels)), "a label may only have letters, digits, '.', '-' and '_', and not begin with '.'"),
        (bool(experiment.loads), "loads is empty; give at least one [[loads]]"),
        (experiment.repeats >= 1, "repeats must be at least 1"),
        (experiment.trial.duration_s > 0, "trial.duration_s must be above 0"),
        (0 <= experiment.trial.max_foreign_share <= 1, "trial.max_foreign_share must be between 0 and 1"),
        (experiment.trial.warm_up_s >= 0, "trial.warm_up_s must not be negative"),
        (experiment.client.workers >= 1, "client.workers must be at least 1"),
        (experiment.client.workers <= MAX_WORKERS, f"client.workers must be at most {MAX_WORKERS}"),
        (all(_is_bound(experiment.slo)), "each bound of slo must be a number of seconds above 0"),
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
        (len(set(levels)) == len(levels), "two loads are equal; remove one"),
        (
            len({each.name for each in experiment.classes}) == len(experiment.classes),
            "two classes have the same name; rename one",
        ),
        (
            all(_is_name(each.name) for each in experiment.classes),
            "the name of a class may only have letters, digits, '.', '-' and '_', and not begin with '.'",
        ),
        (
            not (
                strange := {load.only for load in experiment.loads}
                - {None, *(each.name for each in experiment.classes)}
            ),
            f"a load has only = '{min(map(str, strange), default='')}', which is no class; name one of [[classes]]",
        ),
        (
            any(load.only is None for load in experiment.loads),
            "every load is of one class alone; leave out only, or the other classes",
        ),
        (
            not experiment.classes or all(load.arrival != "workload" for load in experiment.loads),
            "classes have no arrivals of a workload; give the load an arrival process, such as poisson",
        ),
        (all(all(_is_bound(each.slo)) for each in experiment.classes), "each bound of slo must be a number above 0"),
        (
            len({share.name for share in experiment.workload.models}) == len(experiment.workload.models),
            "workload.models names a model twice; add its weights",
        ),
        (
            not experiment.profile or not any(len(engine.urls) > 1 for engine in experiment.engines),
            "an engine with several urls cannot be profiled; give the url of one server",
        ),
        (experiment.profile or not experiment.kernels, "kernels belong to profiled trials; set profile = true"),
    )
    return next((problem for is_ok, problem in checks if not is_ok), None)


def _is_bound(slo: Slo) -> Iterator[bool]:
    """For each bound that is set: whether a request can meet it."""
    values: list[float | None] = [getattr(slo, name) for name in slo.__struct_fields__]
    return (0 < value < math.inf for value in values if value is not None)


def _plan_problem(load: Load, trial: TrialConfig) -> str | None:
    """Refuse a load whose plan takes hours: nothing would be heard of the run in that time."""
    if load.rate_per_s is None:
        return None
    planned = load.rate_per_s * (trial.ramp_s + trial.duration_s)
    if trial.max_requests is not None:
        planned = min(planned, trial.max_requests)
    if planned <= MAX_PLANNED:
        return None
    return (
        f"rate_per_s {load.rate_per_s:g} for {trial.ramp_s + trial.duration_s:g} s is a plan of more than "
        f"{MAX_PLANNED:,} requests; lower rate_per_s or trial.duration_s"
    )


def _faults_problem(experiment: Experiment) -> str | None:
    """The first reason why faults cannot be caused as the experiment says; None if they can."""
    faults, names = experiment.faults, [engine.name for engine in experiment.engines]
    unknown = [fault.engine for fault in faults if fault.engine not in {None, *names}]
    kills, closed = any(fault.action.kills for fault in faults), any(load.concurrency for load in experiment.loads)
    checks = (
        (not unknown, f"faults: there is no engine '{next(iter(unknown), None)}'; choose from {', '.join(names)}"),
        (
            not faults or all(map(is_steady, experiment.loads)),
            "faults need a load that does not change by itself; give an arrival such as poisson",
        ),
        (
            not (kills and closed),
            "faults: slots of a closed loop would try a dead replica again at once, for ever; give rate_per_s",
        ),
        (not (faults and experiment.profile), "faults disturb what a profile shows; leave one of them out"),
    )
    problems = [problem for is_ok, problem in checks if not is_ok]
    problems += filter(None, (problem_of_fault(fault, experiment.trial.duration_s) for fault in faults))
    for engine in experiment.engines:
        own, trials = experiment.faults_of(engine), experiment.repeats * len(engine.loads or experiment.loads)
        problems += filter(None, (problem_of_engine(fault, engine.name, engine, trials) for fault in own))
        problems += filter(None, [overlap_of(own)])
    return next(iter(problems), None)


def _rules_problem(experiment: Experiment) -> str | None:
    rules = experiment.rules_of_play
    if rules.start is Start.LONG_RUN:
        return None
    if any(load.concurrency is None for load in experiment.loads):
        return f"rules '{rules.name}' keep a number of sessions alive; give each load concurrency"
    if experiment.trial.cache is not Cache.COLD:
        return f"rules '{rules.name}' say what the cache holds; leave out trial.cache"
    return None


def _load_problem(load: Load) -> str | None:
    slots, rate, cap = load.concurrency, load.rate_per_s, load.max_in_flight
    is_recorded = load.arrival == "workload"
    checks = (
        (rate is None or rate > 0, f"rate_per_s must be above 0, not {rate}"),
        (rate is None or rate <= MAX_RATE_PER_S, f"rate_per_s must be at most {MAX_RATE_PER_S:g}, not {rate}"),
        (slots is None or slots <= MAX_SLOTS, f"concurrency must be at most {MAX_SLOTS}, not {slots}"),
        (slots is not None or load.arrival or rate is None, "a load with rate_per_s needs arrival, such as 'poisson'"),
        ((slots is None) != (load.arrival is None), "a load has either concurrency or rate_per_s with arrival"),
        (slots is None or slots >= 1, f"concurrency must be at least 1, not {slots}"),
        (slots is None or rate is None, "rate_per_s belongs to a load with arrival, not to one with concurrency"),
        (slots is not None or is_recorded or rate is not None, f"arrival '{load.arrival}' needs rate_per_s"),
        (load.time_warp is None or is_recorded, "time_warp belongs to a load with arrival = 'workload'"),
        (load.time_warp is None or rate is None, "a load has either time_warp or rate_per_s"),
        (load.time_warp is None or load.time_warp > 0, f"time_warp must be above 0, not {load.time_warp}"),
        (
            load.time_warp is None or load.time_warp <= MAX_TIME_WARP,
            f"time_warp must be at most {MAX_TIME_WARP:g}, not {load.time_warp}",
        ),
        (not load.arrival_options or not (is_recorded or slots), "arrival_options belong to a named arrival process"),
        (cap is None or slots is None, "max_in_flight belongs to a load with arrival"),
        (cap is None or cap >= 1, f"max_in_flight must be at least 1, not {cap}"),
    )
    return next((problem for is_ok, problem in checks if not is_ok), None)


def _is_cluster(address: str | None) -> bool:
    host, _, port = (address or "auto").rpartition(":")
    return address in {None, "", "auto"} or (bool(host) and "/" not in host and port.isdecimal())


def _is_name(text: str) -> bool:
    return bool(text) and text.replace("-", "").replace("_", "").replace(".", "").isalnum() and text[0] != "."
