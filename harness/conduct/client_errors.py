"""The client's own error under each load: measured once for each start of an engine, at the pace of its first trial."""

import asyncio
from collections.abc import Sequence

import msgspec
import numpy as np

from bakeoff.harness.calibration.client_error import Shape, median_of, spread_of
from bakeoff.harness.client import Fleet
from bakeoff.harness.conduct.world import World
from bakeoff.harness.errors import ClientFailed, TruthFailed
from bakeoff.harness.experiment.config import ClientConfig
from bakeoff.harness.verdict.client import client_faults
from bakeoff.harness.verdict.evidence import Evidence
from bakeoff.results.columns import UNKNOWN
from bakeoff.results.metrics import latency
from bakeoff.results.metrics.declaration import known
from bakeoff.results.records import ClientError, Load, RequestRecord, Startup, TrialRecord
from bakeoff.results.requests import Requests

_MAX_SHAPED = 20_000
"""Answers from which the shape of a load is taken, spread over all of it."""
_PAUSES_S = (0.0, 2.0, 4.0, 6.0)
"""Waits before further calibrations, which outlast a disturbance of some seconds."""


def shape_of(load: Load, requests: Sequence[RequestRecord]) -> Shape:
    """The trial's load as a calibration can repeat it: the number of streams, and the pace and size of their chunks."""
    under = Requests(requests).under_load
    answers = under.take(under.chunks.counts > 0)
    rate = None if load.concurrency is not None else _sent_per_s(answers, load.rate_per_s)
    shape = Shape(concurrency=load.concurrency, rate_per_s=rate)
    if not len(answers):
        return shape
    answers = answers.take(np.linspace(0, len(answers) - 1, min(len(answers), _MAX_SHAPED), dtype=np.int64))
    (gaps_s, _), ttfts_s = latency.chunk_gaps_s(answers), known(latency.ttft_from_send_s(answers))
    reads, sent_bytes = answers.chunks.reads, answers.ints("sent_bytes")
    return msgspec.structs.replace(
        shape,
        gap_s=float(gaps_s.mean()) if len(gaps_s) else shape.gap_s,
        chunks=max(1, round(float(reads.counts.mean()))),
        ttft_s=float(np.median(ttfts_s)) if len(ttfts_s) else shape.ttft_s,
        tokens_per_chunk=max(1, round(float(reads.tokens.mean()))),  # an answer of embeddings has none
        body_bytes=spread_of(sent_bytes[sent_bytes != UNKNOWN].tolist()),
    )


def _sent_per_s(requests: Requests, planned: float | None) -> float:
    """Requests per second: as planned; fewer if a cap held some back; more if sessions have several turns."""
    sent_ns = requests.ints("sent_ns")
    sent_ns = sent_ns[sent_ns != UNKNOWN]
    if len(sent_ns) < 2:  # no interval to measure a rate by
        return planned or 1.0
    rate = (len(sent_ns) - 1) / max(1e-9, int(np.ptp(sent_ns)) / 1e9)
    return rate if planned is None or requests.ints("turn").any() else min(planned, rate)


class ClientErrors:
    """Measures the client's error for each engine and load.

    Args:
        config: of the client.
        fleet: its workers.
        world: calibrates them.
    """

    def __init__(self, config: ClientConfig, fleet: Fleet, world: World) -> None:
        self._config = config
        self._fleet = fleet
        self._world = world
        self._start: Startup | None = None
        self._known: dict[tuple[str, str], ClientError] = {}

    async def of(self, record: TrialRecord, evidence: Evidence) -> tuple[ClientError | None, str | None]:
        """The client's error at this engine's pace under this load, or why it is unknown.

        It is measured once for each start of an engine, and again before a stored one makes a trial INVALID.
        """
        if not self._config.calibrate:
            return None, "client.calibrate is off"
        if not self._fleet.is_local:
            return None, "a worker is on another host, and the truth server on this one"
        if evidence.client_loss or evidence.engine_death:
            return None, "the client was lost" if evidence.client_loss else "the engine died"
        if evidence.ramp is not None and evidence.ramp.has_failed:
            return None, "every request failed"
        if record.startup is not self._start:
            self._start = record.startup
            self._known.clear()
        key = (record.engine, record.load.label)
        try:
            if key not in self._known or _condemns(self._known[key], evidence):
                self._known[key] = await self._calibrated(evidence)
        except (ClientFailed, TruthFailed) as error:
            return None, str(error)
        return self._known[key], None

    async def _calibrated(self, evidence: Evidence) -> ClientError:
        """Calibrate once; if the result would make the trial INVALID, up to four times more, and take the median."""
        shape = shape_of(evidence.load, evidence.requests)
        transport = self._config.transport
        error = await self._world.calibrate(self._fleet, shape, transport)
        errors = [error]
        for pause_s in _PAUSES_S:
            if not _condemns(error, evidence):
                break
            await asyncio.sleep(pause_s)
            errors.append(await self._world.calibrate(self._fleet, shape, transport))
            if len(errors) % 2:
                error = median_of(errors)
        return error


def _condemns(error: ClientError, evidence: Evidence) -> bool:
    """Whether the trial is INVALID if the client's error is as large as this."""
    return bool(client_faults(msgspec.structs.replace(evidence, client_error=error)))
