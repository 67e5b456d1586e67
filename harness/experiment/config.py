"""Experiments: which engines, under which loads, how often; expanded to an ordered plan."""

from collections.abc import Collection
from typing import Annotated, Any

import msgspec

from bakeoff.engines import Deployment, EngineSpec, records_requests
from bakeoff.engines.request_shape import RequestShape
from bakeoff.harness.client.wire.live_history import History
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.experiment.faults import Fault
from bakeoff.harness.host.machine_state import MAX_FOREIGN_SHARE
from bakeoff.harness.rules.rule_set import STEADY, Rules, rules_named
from bakeoff.results.prices import Prices, TokenPrices
from bakeoff.results.records import Cache, GridPoint, Load, Slo, TrialPlan
from bakeoff.workloads import VARYING_ARRIVALS, Workload, workload
from bakeoff.workloads.mix import Mix, Part
from bakeoff.workloads.models import ModelShare

MAX_SECONDS = 1e6
MAX_PLANNED = 1_000_000
"""Most requests of one part of a trial's plan. Planning takes about a millisecond for each."""
MAX_WORKERS = 1024
CLASSES = "classes"
"""Name of the workload in tables where the traffic has classes."""
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
    arrival: str | None = None
    """Arrival process of its sessions in an open loop, at its share of the rate. Default: the load's, for all classes
    without one together."""
    arrival_options: dict[str, Any] = {}
    """Options of that process."""
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
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)] | None = None
    """A request that takes longer than this many seconds counts as failed. Default: four windows, 60 to 600."""
    max_failure_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    """A trial with a larger share of failed requests is INVALID."""
    max_foreign_share: float = MAX_FOREIGN_SHARE
    """A trial is INVALID if other processes use more than this share of all CPU time; 1 disables the check."""
    cache: Cache = Cache.COLD
    """What the prefix cache may hold when the load begins: ``cold``, ``primed`` (shared system prompts) or ``warm``."""

    @property
    def request_timeout_s(self) -> float:
        """Limit of each request."""
        return self.timeout_s or min(600.0, max(60.0, 4 * self.duration_s))


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
    """Rules of play of sessions: one of ``bakeoff workloads rules``, or the path of a file that ends in ``.toml``. They
    set what the experiment leaves out, such as ``trial.duration_s``."""
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
    """Bounds of each request; a file may write them, and those of the trial, as texts such as ``"ttft<500ms"``."""
    objectives: list[str] = []
    """Bounds of each trial, such as ``ttft_p90<500ms``."""
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

    def source(self, only: Collection[str] | None = None) -> Workload:
        """The sessions that every engine gets.

        Args:
            only: names of classes; None for all.

        Raises:
            WorkloadError: a workload or one of its options is unknown.
        """
        if not self.classes:
            return workload(self.workload.name, self.workload.options)
        chosen = (each for each in self.classes if only is None or each.name in only)
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
        """Seed of one level's lengths and arrival times: equal for all engines and repeats, but not between levels.

        A class alone has that of the load from which it is taken.
        """
        return f"{self.seed}/{(self.load_with(load) or load).label}"

    def load_with(self, alone: Load) -> Load | None:
        """The load of all classes of which a load is one class's part; None if there is none."""
        if alone.only is None:
            return None
        weights = {each.name: each.weight for each in self.classes}
        share = weights[alone.only] / sum(weights.values())
        return next((load for load in self.loads if alone.is_part_of(load, share)), None)


def is_steady(load: Load) -> bool:
    """Whether a load is constant and so has ramp, window and tail; varying loads and recorded arrivals are not."""
    return load.concurrency is not None or load.arrival not in {"workload", *VARYING_ARRIVALS}
