"""Synthetic runs, written through the public store as the harness would write them.

A :class:`Speed` says how fast an engine is; :func:`build_run` simulates its slots request by request on a made-up
monotonic clock, so that every number in the folder is plausible and the same seed gives the same bytes.
"""

import hashlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bakeoff.results.files.frames import FrameAppender
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, invalid, warning
from bakeoff.results.log.run_log import (
    EngineFailure,
    EngineLost,
    Event,
    Manifest,
    RunEnded,
    RunLog,
    RunStarted,
    TrialFinished,
)
from bakeoff.results.log.store import RunFolder
from bakeoff.results.metrics.declaration import QUANTILES
from bakeoff.results.metrics.quality import Difference, QualityRecord, QualitySample, pooled
from bakeoff.results.prices import Prices, TokenPrices
from bakeoff.results.records import (
    DECODER,
    ClientError,
    ClientRecord,
    EngineDescription,
    Load,
    Outcome,
    Phase,
    RequestRecord,
    RunStatus,
    Slo,
    TelemetryRecord,
    TokenSource,
    TrialPlan,
    TrialRecord,
    Verdict,
    Window,
)
from bakeoff.results.schema import SCHEMA_VERSION
from tests.results.gpu_samples import gpu_samples

MS = 1_000_000
S = 1_000_000_000
LOADS = (
    Load(concurrency=1),
    Load(concurrency=4),
    Load(concurrency=8),
    Load(rate_per_s=2.0, arrival="poisson"),
)


@dataclass(frozen=True)
class Speed:
    """How one synthetic engine behaves.

    ``ttft_s`` and ``itl_s`` apply to a request that runs alone; both grow with the requests in flight.
    """

    ttft_s: float
    itl_s: float
    crowding: float
    """Share by which each further request in flight slows the others."""
    rss_bytes: float
    tokens_per_chunk: int = 1
    failing: tuple[Outcome, ...] = ()
    reports_prompt_tokens: bool = True
    delivers: float = 1.0
    """Share of the requested output that it delivers."""
    slots: int = 0
    """Requests that the engine runs at once, which it also reports on its metrics page; 0: it reports nothing."""
    drafts: int = 0
    """Drafts of each verification; one of two verifications accepts them all, the other none. 0: no speculation."""


FAST = Speed(0.021, 0.0042, 0.06, 1.43e9, slots=4)
SLOW = Speed(
    0.064,
    0.0131,
    0.55,
    2.91e9,
    failing=(Outcome.HTTP_ERROR, Outcome.TIMEOUT, Outcome.STREAM_ERROR),
    reports_prompt_tokens=False,
)


@dataclass(frozen=True)
class Texts:
    """Every text that an engine, a model or a user may choose; tests fill them with hostile strings."""

    workload: str = "chat"
    answer: str = "The ship sails at dawn."
    error: str = "HTTP 503: server busy"
    gpu: str = "gpu0"
    example: str = "chat-3: 12 tokens where 10 were meant"
    note: str = "workload scaled to 1/10 of its published request count"
    name: str = "demo"
    version: str = "0.1.0"
    session: str = "s"
    finish: str = "length"
    no_gpu: str = "NVML is not installed here"


@dataclass(frozen=True)
class Sheet:
    """What :func:`build_run` writes; the defaults are 2 engines × 4 loads × 3 repeats."""

    engines: dict[str, Speed] = field(default_factory=lambda: {"reference": FAST, "transformers": SLOW})
    loads: Sequence[Load] = LOADS
    repeats: int = 3
    requests: int = 24
    tokens: int = 24
    status: RunStatus = RunStatus.COMPLETE
    finished: int | None = None
    """How many trials of the plan ended; None is all."""
    invalid: tuple[int, ...] = (4,)
    """Positions in the plan of the trials that are INVALID."""
    void: Finding | None = None
    """Why they are INVALID; None: a GPU throttled."""
    engine_failures: tuple[EngineFailure, ...] = ()
    """Starts that failed."""
    reused: dict[int, str] = field(default_factory=dict[int, str])
    """Position in the plan → the run from which the trial was reused."""
    created_utc: str = "2026-11-20T10:15:00+00:00"
    texts: Texts = Texts()
    slo: Slo = field(default_factory=lambda: Slo(ttft_s=0.2, tpot_s=0.05))
    prices: dict[str, Prices] = field(default_factory=dict[str, Prices])
    api_prices: TokenPrices = field(default_factory=TokenPrices)
    seed: int = 7
    error_s: float | None = 0.000_12
    """The client's error for a gap; for TTFT three times that; both grow with the load. None: not calibrated."""
    regret: float | None = 0.02
    """Regret of the answers of all engines but the first where they diverge from the reference. None: not checked."""
    is_streamed: bool = True
    """Whether answers are streams."""
    hosts: tuple[str, ...] = ("bench-01",)
    """Hosts of the client's workers; the clock of every host but the first is off by 1.5 s ± 85 µs."""
    gpus: int = 0
    """GPUs sampled beside the engine; 0: the machine has none."""
    run_id: str = "20261120-101500-demo-3f9a"
    pid: int = field(default_factory=os.getpid)


def build_run(root: Path, sheet: Sheet | None = None) -> Path:
    """Write the run that ``sheet`` describes and return its folder."""
    sheet = sheet or Sheet()
    plans = list(_plan(sheet))
    run = RunFolder.create(root, *begun(sheet, plans))
    finished = [_write_trial(run, sheet, plan, order) for order, plan in enumerate(plans[: sheet.finished])]
    run.write_log([*begun(sheet, plans), *finished, *_ended(sheet)])
    return run.path


def manifest(sheet: Sheet, plans: Sequence[TrialPlan]) -> Manifest:
    """The manifest of a sheet's run before its first trial."""
    log = RunLog([*begun(sheet, plans), *_ended(sheet)])
    assert log.started is not None
    return log.manifest(log.started, sheet.status)


def _ended(sheet: Sheet) -> list[Event]:
    if sheet.status is RunStatus.RUNNING:
        return []
    return [RunEnded(status=sheet.status, ended_utc="2026-11-20T10:42:00+00:00")]


def begun(sheet: Sheet, plans: Sequence[TrialPlan]) -> list[Event]:
    """The first events of a sheet's log."""
    started = RunStarted(
        schema_version=SCHEMA_VERSION,
        run_id=sheet.run_id,
        name=sheet.texts.name,
        created_utc=sheet.created_utc,
        pid=sheet.pid,
        host=socket.gethostname() if sheet.status is RunStatus.RUNNING else "bench-01",
        bakeoff_version="0.1.0",
        git_commit="3f9a1c2e5b7d",
        experiment={"name": sheet.texts.name, "repeats": sheet.repeats, "workload": [{"name": sheet.texts.workload}]},
        environment={
            "cpu": "Xeon 8468",
            "cores": 2,
            "gpus": None,
            "gpus_reason": "NVML is not available: NVML Shared Library Not Found",
            "memory_bytes": 16 * 1024**3,
            "kernel": "6.1.0-29-amd64",
            "python": "3.11.9",
        },
        plan=list(plans),
        slo=sheet.slo,
        prices=sheet.prices,
        api_prices=sheet.api_prices,
        notes=[sheet.texts.note],
    )
    lost = [
        EngineLost(engine=failure.engine, turn=failure.repeat, reason=failure.fate, fate=failure.fate)
        for failure in sheet.engine_failures
    ]
    return [started, *lost]


def _plan(sheet: Sheet) -> Iterator[TrialPlan]:
    """Trials in the harness's order: A B, B A, A B…; each engine starts once per repeat and runs all levels."""
    for repeat in range(1, sheet.repeats + 1):
        for engine in sheet.engines if repeat % 2 else reversed(sheet.engines):
            for number, load in enumerate(sheet.loads, start=1):
                trial_id = f"r{repeat}-e{list(sheet.engines).index(engine)}-{number}"
                yield TrialPlan(trial_id, engine, sheet.texts.workload, load, repeat)


def _write_trial(run: RunFolder, sheet: Sheet, plan: TrialPlan, order: int) -> TrialFinished:
    speed = sheet.engines[plan.engine]
    started = (order + 1) * 100 * S
    issue_start = started + 9 * S
    requests = simulate(sheet, plan, speed, issue_start)
    last = max(request.ended_ns for request in requests)
    issue_end = max(request.planned_ns for request in requests) + MS
    trial = run.trial(plan.id)
    trial.create()
    with FrameAppender(trial.stream_log(0)):
        pass
    trial.write_requests(requests)
    _write_telemetry(trial.telemetry_log, _samples(sheet, speed, requests, issue_start - S, last))
    if sheet.regret is not None:
        trial.write_quality(quality(sheet, plan, sheet.regret))
    is_invalid = order in sheet.invalid
    return TrialFinished(
        record=TrialRecord(
            decoder=DECODER,
            id=plan.id,
            engine=plan.engine,
            workload=plan.workload,
            load=plan.load,
            repeat=plan.repeat,
            order=order + 1,
            started_ns=started,
            ended_ns=last + S,
            issue_start_ns=issue_start,
            issue_end_ns=issue_end,
            window=Window(issue_start, issue_end),
            planned_requests=sheet.requests,
            workload_sha256=hashlib.sha256(plan.load.label.encode()).hexdigest(),
            verdict=Verdict.INVALID if is_invalid else Verdict.VALID,
            findings=list(_findings(sheet, plan, is_invalid=is_invalid)),
            reused_from=sheet.reused.get(order),
            engine_description=describe(sheet, plan.engine),
            start_s=7.4 if plan.engine == next(iter(sheet.engines)) else 11.9,
            clients=[client(host, i, sheet) for i, host in enumerate(sheet.hosts)],
            client_error=client_error(sheet.error_s, plan) if sheet.error_s is not None else None,
            uncalibrated="client.calibrate is off" if sheet.error_s is None else None,
        )
    )


def _findings(sheet: Sheet, plan: TrialPlan, *, is_invalid: bool) -> Iterator[Finding]:
    if is_invalid:
        yield sheet.void or invalid(FindingCode.THROTTLED, gpu=sheet.texts.gpu, held_s=1.5)
    if plan.repeat == 1 and plan.load.concurrency == 8:
        yield warning(
            FindingCode.PROMPT_LENGTH, wrong_requests=2, planned_requests=sheet.requests, example=sheet.texts.example
        )


def quality(sheet: Sheet, plan: TrialPlan, regret: float) -> QualityRecord:
    """Three answers: the first engine's equal the reference; of the others', the second and third diverge from it."""
    parting = 0 if plan.engine == next(iter(sheet.engines)) else 2
    samples = [_answer(sheet, i, 5 * i if i > 2 - parting else None, regret) for i in range(3)]
    return QualityRecord(samples=samples, summary=pooled(samples))


def _answer(sheet: Sheet, number: int, parts_at: int | None, regret: float) -> QualitySample:
    parts = parts_at is not None and parts_at < sheet.tokens
    words = {"token_text": sheet.texts.answer, "expected_text": "\n"}
    difference = Difference(parts_at or 0, 11, 12, regret, **words) if parts else None
    return QualitySample(
        index=2 + number,
        session=f"s{2 + number}",
        turn=0,
        prompt_tokens=102 + number,
        tokens=sheet.tokens,
        agreement=1 - parts / sheet.tokens,
        first_divergence=parts_at if parts else None,
        matched_prefix=(parts_at or 0) if parts else sheet.tokens,
        mean_regret=parts * regret / sheet.tokens,
        max_regret=parts * regret,
        near_ties=int(parts and regret < 0.2),
        first=difference,
        worst=difference,
    )


def client_error(error_s: float, plan: TrialPlan) -> ClientError:
    """The result of a calibration: the error grows with the streams and is the same for every engine."""
    gap_error_s = error_s * (1 + (plan.load.concurrency or 3) / 16) * (1 + plan.repeat / 100)
    of_starts, of_gaps = ("ttft", "ttft_from_send", "e2e"), ("itl", "chunk_gap", "tpot", "normalized_latency")
    by_metric = {f"{name}_{label}_s": 3 * gap_error_s for name in of_starts for label, _ in QUANTILES}
    by_metric |= {f"{name}_{label}_s": gap_error_s for name in of_gaps for label, _ in QUANTILES}
    return ClientError(requests=80, chunks_per_s=5_000.0, send_lag_s=gap_error_s, cpu_s=0.05, by_metric=by_metric)


def client(host: str, number: int, sheet: Sheet) -> ClientRecord:
    """One worker of the client."""
    far = host != sheet.hosts[0]
    return ClientRecord(
        host=host,
        planned_requests=sheet.requests // len(sheet.hosts),
        cpu_s=0.25,
        rss_bytes=(40 + number) * 1024**2,
        clock_offset_ns=1_500_000_000 if far else 0,
        clock_uncertainty_ns=85_000 if far else 0,
    )


def describe(sheet: Sheet, engine: str) -> EngineDescription:
    """The engine's description of itself."""
    return EngineDescription(
        label=engine,
        adapter="reference" if "ref" in engine else "openai",
        version=sheet.texts.version,
        argv=["python", "-m", "bakeoff.reference_engine", "--model", "SmolLM2-135M", "--port", "8123"],
        url="http://127.0.0.1:8123",
        model="SmolLM2-135M-Instruct",
        model_sha256="5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c",
        details={"dtype": "float32", "threads": 2},
    )


def simulate(sheet: Sheet, plan: TrialPlan, speed: Speed, start_ns: int) -> list[RequestRecord]:
    """Two warm-up requests, then the measured ones, in the order in which they ended."""
    rng = np.random.default_rng([sheet.seed, plan.repeat, len(plan.load.label)])
    drift = float(np.exp(rng.normal(0, 0.015)))
    in_flight = plan.load.concurrency or 3
    slow = drift * (1 + speed.crowding * (in_flight - 1))
    warmup = [_request(sheet, speed, rng, i, start_ns - (3 - i) * S, slow, Phase.WARMUP) for i in range(2)]
    if plan.load.concurrency is None:
        gaps = rng.exponential(1 / (plan.load.rate_per_s or 1), sheet.requests) * S
        planned = start_ns + np.cumsum(gaps).astype(np.int64)
        measured = [_request(sheet, speed, rng, 2 + i, int(t), slow) for i, t in enumerate(planned)]
    else:
        measured = []
        free = [start_ns] * plan.load.concurrency
        for i in range(sheet.requests):
            slot = int(np.argmin(free))
            measured.append(_request(sheet, speed, rng, 2 + i, free[slot], slow))
            free[slot] = measured[-1].ended_ns
    return sorted([*warmup, *measured], key=lambda request: request.ended_ns)


def _request(
    sheet: Sheet,
    speed: Speed,
    rng: np.random.Generator,
    index: int,
    planned_ns: int,
    slow: float,
    phase: Phase = Phase.MEASURED,
) -> RequestRecord:
    sent = planned_ns + int(rng.exponential(0.15) * MS)
    first = sent + int(speed.ttft_s * slow * float(np.exp(rng.normal(0, 0.25))) * S)
    step = speed.tokens_per_chunk
    count = round(speed.delivers * sheet.tokens) // step
    gaps = speed.itl_s * step * slow * np.exp(rng.normal(0, 0.18, max(0, count - 1))) * S
    chunks = [first, *(first + np.cumsum(gaps).astype(np.int64)).tolist()]
    outcome = speed.failing[index // 11 % 3] if speed.failing and index % 11 == 10 else Outcome.OK
    if outcome is not Outcome.OK:
        chunks = chunks[: len(chunks) // 2] if outcome is Outcome.STREAM_ERROR else []
    return RequestRecord(
        index=index,
        phase=phase,
        session=f"{sheet.texts.session}{index}",
        turn=0,
        planned_ns=planned_ns,
        ended_ns=(chunks[-1] if chunks else first) + MS // 5,
        outcome=outcome,
        sent_ns=sent,
        first_byte_ns=chunks[0] if chunks else None,
        chunk_ns=chunks,
        chunk_tokens=[step] * len(chunks),
        token_source=TokenSource.IDS if chunks else None,
        requested_input_tokens=100 + index,
        requested_output_tokens=sheet.tokens,
        prompt_tokens=100 + index if speed.reports_prompt_tokens else None,
        output_tokens=step * len(chunks),
        finish_reason=sheet.texts.finish if outcome is Outcome.OK else None,
        status=503 if outcome is Outcome.HTTP_ERROR else 200,
        error=None if outcome is Outcome.OK else sheet.texts.error,
        text=sheet.texts.answer if chunks else "",
        is_streamed=sheet.is_streamed,
    )


CORES, FOREIGN_SHARE = 4, 0.004


def telemetry(
    speed: Speed,
    requests: Sequence[RequestRecord],
    start_ns: int,
    end_ns: int,
    every_ns: int = 200 * MS,
    no_gpu: str = "NVML is not installed here",
) -> list[TelemetryRecord]:
    """Samples under the harness's names: the engine's processes, the host, the client's loop, the sampler."""
    records: list[TelemetryRecord] = []
    cpu_s = 0.0
    for t_ns in range(start_ns, end_ns + every_ns, every_ns):
        busy = sum(request.planned_ns <= t_ns < request.ended_ns for request in requests)
        rss = int(speed.rss_bytes + busy * 9e6)
        cpu_s += min(2.0, 0.1 + 0.5 * busy) * every_ns / S
        records.append(TelemetryRecord(t_ns, "engine", {"rss_bytes": rss, "cpu_s": round(cpu_s, 3), "processes": 1}))
        foreign_s = FOREIGN_SHARE * CORES * (t_ns - start_ns) / S
        unused_s = CORES * (t_ns - start_ns) / S - cpu_s - foreign_s
        records.append(TelemetryRecord(t_ns, "cpu", {"cores": CORES, "unused_s": unused_s, "own_s": cpu_s}))
        records.append(TelemetryRecord(t_ns, "host", {"cpu_share": min(1.0, 0.1 + busy / 4)}))
        records.append(TelemetryRecord(t_ns, "sampler", {"gpus": None}, {"nvml": no_gpu}))
    records.append(TelemetryRecord(end_ns, "client_loop", {"loop_lag_p99_s": 0.0007}))
    return [*records, *(_page(speed, requests, start_ns, end_ns) if speed.slots else [])]


def _samples(
    sheet: Sheet, speed: Speed, requests: Sequence[RequestRecord], start_ns: int, end_ns: int
) -> list[TelemetryRecord]:
    every_ns = 200 * MS
    gpus = gpu_samples(sheet.gpus, requests, start_ns, end_ns, every_ns)
    return [*telemetry(speed, requests, start_ns, end_ns, every_ns, sheet.texts.no_gpu), *gpus]


def _page(speed: Speed, requests: Sequence[RequestRecord], start_ns: int, end_ns: int) -> Iterator[TelemetryRecord]:
    """Readings of the engine's metrics page twice a second and at both marks, consistent with the same requests."""
    warmed_ns = min(request.planned_ns for request in requests if request.phase is Phase.MEASURED) - MS
    times: dict[int, dict[str, str]] = {t_ns: {} for t_ns in range(start_ns, end_ns, S // 2)}
    times |= {warmed_ns: {"mark": "before"}, end_ns + MS: {"mark": "after"}}
    for t_ns, mark in sorted(times.items()):
        busy = sum(request.planned_ns <= t_ns < request.ended_ns for request in requests)
        batch = {"running": min(speed.slots, busy), "waiting": max(0, busy - speed.slots)}
        ended = [request for request in requests if request.chunk_ns and request.chunk_ns[-1] <= t_ns]
        counters = {**_counters(ended), **(_drafts(speed.drafts, ended) if speed.drafts else {})}
        page = {**batch, "kv_usage_share": min(1.0, busy / 6), **counters}
        yield TelemetryRecord(t_ns, "server", {"scrape_s": 0.002, **page, **mark})


def _counters(ended: Sequence[RequestRecord]) -> dict[str, float]:
    """The network takes a tenth of the time to the first token; of the rest the queue takes 4/5, prefill 1/5."""
    ttfts_s = [(request.chunk_ns[0] - (request.sent_ns or 0)) / S for request in ended]
    decodes_s = [(request.chunk_ns[-1] - request.chunk_ns[0]) / S for request in ended]
    tokens = sum(request.total_chunk_tokens for request in ended)
    inside_s, decode_s = 0.9 * sum(ttfts_s), sum(decodes_s)
    sums = {
        "ttft": inside_s, "queue": 0.8 * inside_s, "prefill": 0.2 * inside_s,
        "decode": decode_s, "itl": decode_s, "e2e": inside_s + decode_s,
    }  # fmt: skip
    counts = {name: len(ended) for name in sums} | {"itl": tokens - len(ended)}
    return {
        "output_tokens_total": tokens,
        "preemptions_total": 3 * (len(ended) // 10),
        **{f"{name}_s_sum": value for name, value in sums.items()},
        **{f"{name}_s_count": value for name, value in counts.items()},
    }


def _drafts(drafts: int, ended: Sequence[RequestRecord]) -> dict[str, float]:
    """Two verifications for each answer."""
    return {
        "drafted_tokens_total": 2 * drafts * len(ended),
        "accepted_tokens_total": drafts * len(ended),
        "verifications_total": 2 * len(ended),
        **{f"accepted_at_{position}_total": len(ended) for position in range(drafts)},
    }


def _write_telemetry(path: Path, records: Sequence[TelemetryRecord]) -> None:
    from bakeoff.results.files.jsonl import Appender  # noqa: PLC0415  (the sampler's own process does the same)

    with Appender(path) as log:
        for record in records:
            log.append(record)
