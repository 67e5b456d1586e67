"""Public analysis API: ``bakeoff.results.load(path)`` gives a run as pandas frames.

>>> import bakeoff
>>> run = bakeoff.load("runs/20261120-101500-demo-3f9a81c2")
>>> run.requests.groupby(["engine", "load"]).ttft_s.median()
"""

import html
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bakeoff.results.attribution import Attribution, attribution_of
from bakeoff.results.errors import RunUnreadable
from bakeoff.results.files.integrity import RESTORE
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.log.remote import fetched, is_remote
from bakeoff.results.log.run_log import Manifest, RunLog
from bakeoff.results.log.search import SearchRecord
from bakeoff.results.log.store import LATEST, RunFolder, newest_run
from bakeoff.results.machine.ceilings import Ceilings, stored_ceilings
from bakeoff.results.metrics import (
    CATALOGUE,
    client_error,
    headline,
    latency,
    summarised,
    trial_metrics,
    whole_load_metrics,
)
from bakeoff.results.metrics.prefix_cache import prompt_tokens
from bakeoff.results.records import (
    Cache,
    RunStatus,
    TrialPlan,
    TrialRecord,
    Verdict,
)
from bakeoff.results.requests import Requests
from bakeoff.results.run.cells import Cell, Trial, cell_of, key_of, repeated_trials
from bakeoff.results.run.course import course_note, courses
from bakeoff.results.run.search_fold import search_record
from bakeoff.results.run.work import work_of
from bakeoff.results.server_view import server_view

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
_UNCHECKED = "cold: not checked, since it does not say what its prefix cache hit"
_CHUNK_COLUMNS = ["trial", "request", "t_ns", "tokens"]


class Run:
    """A run read from disk. Read-only."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.path: Path = folder.path
        self.log: RunLog = folder.read_log()
        self.status: RunStatus = folder.status(self.log)
        self.manifest: Manifest = folder.read_manifest(self.log)

    @cached_property
    def finished(self) -> list[Trial]:
        """Finished trials, in planned order, without profiled ones."""
        return self._finished(self.manifest.trials)

    @cached_property
    def profiled(self) -> list[Trial]:
        """Finished profiled trials, in planned order; no metric of the run counts them."""
        return self._finished(self.manifest.profiled)

    def __repr__(self) -> str:
        """The table of the terminal, as text: engines, loads, and the summary's columns."""
        head = f"{self.manifest.name}: {self.status.value.upper()}, {self.valid} of {self.planned} trials valid"
        return f"{head} ({self.path})\n{self._table.to_string()}"

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        head, *_ = repr(self).splitlines()
        return f"<p>{html.escape(head)}</p>{self._table.to_html(float_format='{:.4g}'.format)}"

    @property
    def _table(self) -> "pd.DataFrame":
        import pandas as pd  # noqa: PLC0415

        rows = {
            (cell.load, cell.engine): {
                **{_heading(name): _shown(cell, name) for name in self.summarised if name != "failures"},
                "failed": f"{cell.failures[0]}/{cell.failures[1]}",
                "valid": f"{cell.valid}/{cell.planned}",
            }
            for cell in self.cells
        }
        return pd.DataFrame.from_dict(rows, orient="index")

    def check(self) -> None:
        """Read all finished trials now, so that a damaged one is refused before anything is shown.

        Raises:
            RunUnreadable: a file of a finished trial is damaged.
        """
        _ = self.finished, self.profiled

    @cached_property
    def search(self) -> SearchRecord | None:
        """Record of the capacity search; None if the run is not one."""
        return search_record(self.log)

    @cached_property
    def unfinished(self) -> list[TrialPlan]:
        """Planned trials that did not finish."""
        return [plan for plan in self.manifest.trials if plan.id not in self.log.finished]

    @cached_property
    def counted(self) -> list[Trial]:
        """Finished trials without those that were measured again."""
        repeated = repeated_trials(self.manifest.trials)
        return [trial for trial in self.finished if trial.record.id not in repeated]

    def counted_of(self, engine: str) -> list[Trial]:
        """Those of one engine."""
        return [trial for trial in self.counted if trial.record.engine == engine]

    @property
    def planned(self) -> int:
        """Number of planned trials; one that was measured again counts once."""
        return len(self.manifest.trials) - len(repeated_trials(self.manifest.trials))

    @property
    def valid(self) -> int:
        """Number of valid trials."""
        return sum(trial.record.verdict is Verdict.VALID for trial in self.finished)

    @cached_property
    def salvaged(self) -> list[tuple[TrialPlan, Requests]]:
        """Interrupted trials with the requests that had ended; shown, never counted."""
        pairs = [(plan, self.folder.trial(plan.id).read_requests()) for plan in self.unfinished]
        return [(plan, requests) for plan, requests in pairs if len(requests)]

    @cached_property
    def torn(self) -> dict[str, list[str]]:
        """Descriptions of torn logs by trial; readers ignore the torn records."""
        folders = [self.folder.trial(plan.id) for plan in (*self.manifest.trials, *self.manifest.profiled)]
        torn_by_trial = {folder.path.name: folder.torn() for folder in folders if folder.path.is_dir()}
        return {
            trial: [
                f"{name} ends in a torn record: {torn_bytes:,} bytes are left out" for name, torn_bytes in torn.items()
            ]
            for trial, torn in torn_by_trial.items()
            if torn
        }

    @cached_property
    def declared(self) -> list[str]:
        """Notes for readers of a report: rules of play, notes of workload and engines, and reused trials."""
        engines: dict[str, dict[str, None]] = {}  # engines that share a note, in order
        for trial in self.finished:
            notes = list(trial.record.engine_description.notes if trial.record.engine_description else ())
            for note in [*notes, *([_UNCHECKED] if _is_cold_unchecked(trial) else [])]:
                engines.setdefault(note, {})[trial.record.engine] = None
        origins = Counter(trial.record.reused_from for trial in self.finished if trial.record.reused_from)
        reused = [f"{count} trials were measured in the run {origin}" for origin, count in origins.items()]
        if self.manifest.resumed_from and self.finished and not origins:
            why = "settings, code, model, traffic and machine are not the same, or none had finished"
            reused = [f"no trial of {self.manifest.resumed_from} was reused: {why}"]
        by_rules = dict.fromkeys(
            f"rules of play: {trial.record.rules.name}" for trial in self.finished if trial.record.rules is not None
        )
        return [
            *by_rules,
            *self.manifest.notes,
            *(f"{', '.join(names)}: {note}" for note, names in engines.items()),
            *map(course_note, courses(self.counted)),
            *reused,
        ]

    @cached_property
    def off_rules(self) -> list[str]:
        """Why trials are not by their rules of play; empty if all are."""
        broken = (
            (trial.record.rules.name, reason)
            for trial in self.finished
            if trial.record.rules is not None
            for reason in trial.record.rules.broken
        )
        reasons: dict[str, dict[str, None]] = {}
        for name, reason in broken:
            reasons.setdefault(name, {})[reason] = None
        return [f"not by the rules {name}: {'; '.join(why)}" for name, why in reasons.items()]

    @cached_property
    def cells(self) -> list[Cell]:
        """One cell per engine, workload and load, in planned order."""
        return [
            cell_of(key, self.manifest.trials, self.finished)
            for key in dict.fromkeys(map(key_of, self.manifest.trials))
        ]

    def trials_of(self, cell: Cell) -> list[Trial]:
        """Finished trials of a cell by repeat, INVALID ones included."""
        return sorted(filter(cell.holds, self.finished), key=lambda trial: trial.record.repeat)

    def valid_trials_of(self, cell: Cell) -> list[Trial]:
        """Valid trials of a cell by repeat."""
        return [trial for trial in self.trials_of(cell) if trial.record.verdict is Verdict.VALID]

    @cached_property
    def headline(self) -> tuple[str, ...]:
        """Metrics of the summary table."""
        return headline(self._known)

    @property
    def summarised(self) -> tuple[str, ...]:
        """Names of the metrics of its summary, tails included."""
        return summarised(self._known)

    @property
    def _known(self) -> set[str]:
        return {name for cell in self.cells for name in (*cell.intervals, *cell.unjudged)}

    @cached_property
    def trials(self) -> "pd.DataFrame":
        """One row per finished trial: identity, verdict and every metric (NaN where absent)."""
        import pandas as pd  # noqa: PLC0415  (0.3 s; only analysis needs it)

        return pd.DataFrame([_trial_row(trial) for trial in self.finished])

    @cached_property
    def requests(self) -> "pd.DataFrame":
        """One row per measured request of a valid trial: those that the report's latencies count."""
        import pandas as pd  # noqa: PLC0415

        frames = list(self.request_slices())
        return pd.concat(frames, ignore_index=True) if frames else self.all_requests.iloc[:0]

    def request_slices(self, rows: int | None = None) -> "Iterator[pd.DataFrame]":
        """The same in frames of at most ``rows`` rows; None for one frame for each trial."""
        for trial in self.finished:
            if trial.record.verdict is Verdict.VALID:
                for part in _sliced(trial.inside, rows):
                    yield _request_frame(trial.record, trial.record.verdict.value, part)

    @cached_property
    def all_requests(self) -> "pd.DataFrame":
        """One row per request of any trial.

        Warm-up, ramp and tail are included (column ``phase``), INVALID trials and salvaged ones (``verdict`` missing).
        """
        import pandas as pd  # noqa: PLC0415

        frames = [_request_frame(trial.record, trial.record.verdict.value, trial.requests) for trial in self.finished]
        frames += [_request_frame(plan, None, requests) for plan, requests in self.salvaged]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    @cached_property
    def chunks(self) -> "pd.DataFrame":
        """One row per token-bearing chunk: trial, request, t_ns, tokens."""
        import pandas as pd  # noqa: PLC0415

        frames = list(self.chunk_slices())
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=_CHUNK_COLUMNS)

    def chunk_slices(self, rows: int | None = None) -> "Iterator[pd.DataFrame]":
        """The same in frames of the chunks of at most ``rows`` requests; None for one frame for each trial."""
        import pandas as pd  # noqa: PLC0415

        for trial in self.finished:
            for part in _sliced(trial.requests, rows):
                chunks = part.chunks
                ids, numbers = [trial.record.id] * len(chunks.ns), part.ints("index")[chunks.request]
                columns = (ids, numbers, chunks.ns, chunks.tokens.astype(np.int64))
                yield pd.DataFrame(dict(zip(_CHUNK_COLUMNS, columns, strict=True)))

    @cached_property
    def ceilings(self) -> list[Ceilings]:
        """Limits of the machine's devices: from the run's log, else as measured there since.

        Raises:
            RunUnreadable: the measurement is damaged.
        """
        manifest = self.manifest
        return manifest.ceilings or stored_ceilings(self.folder.path.parent, manifest.environment)

    @cached_property
    def attributions(self) -> list[Attribution]:
        """Where the latency of each profiled trial came from, in planned order."""
        return [self._attribution(trial) for trial in self.profiled]

    @cached_property
    def attribution(self) -> "pd.DataFrame":
        """One row per request of a profiled trial, latency (``e2e``, ``ttft``) and part, in seconds; NaN if unknown."""
        import pandas as pd  # noqa: PLC0415

        rows = [
            (record.id, record.engine, record.load.label, r.index, latency.value, part.value, seconds.get(part))
            for attribution in self.attributions
            for record in [attribution.record]
            for r in attribution.requests
            for latency, seconds in r.parts.items()
            for part in attribution.parts
        ]
        return pd.DataFrame(rows, columns=["trial", "engine", "load", "request", "latency", "part", "seconds"])

    @cached_property
    def telemetry(self) -> "pd.DataFrame":
        """One row per sample and source, one column per value."""
        import pandas as pd  # noqa: PLC0415

        rows = [
            {"trial": trial.record.id, "t_ns": sample.t_ns, "source": sample.source, **sample.values}
            for trial in self.finished
            for sample in trial.telemetry
        ]
        return pd.DataFrame(rows)

    @cached_property
    def summary(self) -> "pd.DataFrame":
        """One row per cell and metric: centre, low, high, n."""
        import pandas as pd  # noqa: PLC0415

        rows = [
            (cell.engine, cell.workload, cell.load, name, i.centre, i.low, i.high, i.n)
            for cell in self.cells
            for name, i in cell.intervals.items()
        ]
        return pd.DataFrame(rows, columns=["engine", "workload", "load", "metric", "centre", "low", "high", "n"])

    def _attribution(self, trial: Trial) -> Attribution:
        folder = self.folder.trial_of(trial.record)
        try:
            return attribution_of(
                trial.record, trial.answered, folder.read_steps(), folder.read_front_end(), spans=folder.read_spans(),
                telemetry=trial.telemetry, costs=_or_reason(folder.read_step_costs),
                ceilings=_or_reason(lambda: self.ceilings),
                missing=trial.record.step_log_missing,
            )  # fmt: skip
        except RunUnreadable as error:  # the rest of the run can be read
            return attribution_of(trial.record, trial.answered, [], [], missing=str(error))

    def _finished(self, plans: Iterable[TrialPlan]) -> list[Trial]:
        return [self._read(self.log.finished[plan.id]) for plan in plans if plan.id in self.log.finished]

    def _read(self, record: TrialRecord) -> Trial:
        folder = self.folder.trial_of(record)
        requests = folder.read_requests()
        _refuse_lost(record, requests, folder.path)
        telemetry = folder.read_telemetry().records
        metrics = trial_metrics(record, requests, telemetry, self.manifest.slo)
        load = whole_load_metrics(record, requests, self.manifest.slo)
        server = server_view(telemetry, requests, record.window)
        work = work_of(requests.under_load.planned_inside(record.window))
        return Trial(record, requests, telemetry, metrics, load, server, folder.read_quality(), work)


def _is_cold_unchecked(trial: Trial) -> bool:
    """Whether a cache that was to be cold is not known to have been."""
    traffic = trial.record.traffic
    if traffic is None or traffic.cache is not Cache.COLD:
        return False
    return trial.server["server_prefix_hit_share"].value is None and prompt_tokens(trial.requests.under_load) is None


def by_repeat(trials: Iterable[client_error.Measured], load: str, metric: str) -> dict[int, float]:
    """Values of a metric by repeat, over the VALID trials at one load that have it; comparisons pair them.

    Args:
        trials: of one engine and one workload.
        load: label of the load level.
        metric: name in the catalogue.
    """
    return {
        trial.record.repeat: value
        for trial in trials
        if trial.record.verdict is Verdict.VALID
        and trial.record.load.label == load
        and (value := trial.metrics[metric].value) is not None
    }


def load(path: str | Path) -> Run:
    """Read a run folder from a path or from an address in a store.

    Raises:
        RunNotFound: there is no run.
        RunUnreadable: the run is damaged, or of another schema.
        NotReachable: the store cannot be read.
    """
    return Run(RunFolder.open(located(path)))


def located(address: str | Path) -> Path:
    """Local path of a run folder: fetched from a store, or with ``latest`` the newest one in ``runs/``.

    Raises:
        RunNotFound: there is no run in ``runs/``.
    """
    if str(address) == LATEST:
        return newest_run()
    return fetched(str(address)) if is_remote(address) else Path(address)


def _refuse_lost(record: TrialRecord, requests: Requests, path: Path) -> None:
    """Refuse a trial that has fewer or more requests than when it was judged.

    Raises:
        RunUnreadable: it has.
    """
    known = any(finding.code is FindingCode.REQUESTS_LOST for finding in record.findings)
    under = len(requests.under_load)
    if not known and under != record.planned_requests:
        raise RunUnreadable(
            f"{path} holds {under} requests under load, and {record.planned_requests} were planned; {RESTORE}"
        )


def _or_reason(read: Callable[[], T]) -> T | str:
    """The value read, or why it cannot be read: the rest can be attributed without it."""
    try:
        return read()
    except RunUnreadable as error:
        return str(error)


def _trial_row(trial: Trial) -> dict[str, Any]:
    record = trial.record
    error = record.client_error
    quality = trial.quality.summary if trial.quality else None
    return {
        "trial": record.id,
        "engine": record.engine,
        "workload": record.workload,
        "load": record.load.label,
        "repeat": record.repeat,
        "order": record.order,
        "verdict": record.verdict.value,
        "planned_requests": record.planned_requests,
        "window_s": trial.window.length_s,
        "window": trial.window.kind.value,
        "client_ttft_p99_error_s": client_error.error_s("ttft_p99_s", error),
        "client_chunk_gap_p99_error_s": client_error.error_s("chunk_gap_p99_s", error),
        "agreement": quality.agreement if quality else None,
        "mean_regret": quality.mean_regret if quality else None,
        **{name: value.value for name, value in (trial.metrics | trial.server).items()},
        **{f"load_{name}": value.value for name, value in trial.load_metrics.items()},
    }


def _heading(name: str) -> str:
    """``TTFT p50 (s)``: the unit of the figures as they are stored."""
    metric = CATALOGUE[name]
    return f"{metric.title} ({metric.unit})" if metric.unit else metric.title


def _shown(cell: Cell, name: str) -> float | str | None:
    """A figure of the table; in parentheses if no trial is valid."""
    if name in cell.intervals:
        return cell.intervals[name].centre
    return f"({cell.unjudged[name]:.4g})" if name in cell.unjudged else None


def _sliced(requests: Requests, rows: int | None) -> Iterator[Requests]:
    step = rows or max(1, len(requests))
    return (requests[first : first + step] for first in range(0, len(requests), step))


def _request_frame(plan: TrialPlan | TrialRecord, verdict: str | None, requests: Requests) -> "pd.DataFrame":
    import pandas as pd  # noqa: PLC0415

    fixed = {
        "trial": plan.id, "engine": plan.engine, "workload": plan.workload, "load": plan.load.label,
        "repeat": plan.repeat, "verdict": verdict,
    }  # fmt: skip
    columns: dict[str, Any] = {name: [value] * len(requests) for name, value in fixed.items()}
    columns |= {
        name: requests.values(name)
        for name in (
            "index", "phase", "session", "turn", "agent", "address", "outcome", "planned_ns", "sent_ns", "ended_ns",
            "prompt_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "hidden_tokens", "image_tokens",
            "model", "traffic_class", "is_right",
        )
    }  # fmt: skip
    columns["chunks"] = requests.chunks.counts
    columns |= {
        "ttft_s": latency.ttft_s(requests),
        "first_visible_s": latency.first_visible_s(requests),
        "ttft_from_send_s": latency.ttft_from_send_s(requests),
        "tpot_s": latency.tpot_s(requests),
        "e2e_s": latency.e2e_s(requests),
        "send_lag_s": latency.send_lag_s(requests),
        "dial_s": latency.dial_s(requests),
    }
    columns |= {name: requests.values(name) for name in ("token_source", "finish_reason", "error")}
    for name in ("phase", "outcome", "token_source"):
        columns[name] = [None if member is None else member.value for member in columns[name]]
    return pd.DataFrame(columns)
