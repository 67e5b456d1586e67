"""Hand-made requests in milliseconds, so that a worked example reads like its arithmetic."""

from collections.abc import Sequence

from bakeoff.results.records import Load, Outcome, Phase, RequestRecord, TrialRecord, Verdict, Window

MS = 1_000_000


def request(
    planned: float = 0,
    chunks: Sequence[float] = (),
    tokens: Sequence[int] | None = None,
    *,
    sent: float | None = None,
    ended: float | None = None,
    outcome: Outcome = Outcome.OK,
    phase: Phase = Phase.MEASURED,
    prompt_tokens: int | None = None,
    cached_tokens: int | None = None,
    index: int = 0,
) -> RequestRecord:
    """A request whose chunks arrived at ``chunks`` (ms), one token each unless ``tokens`` says otherwise."""
    last = chunks[-1] if chunks else planned
    return RequestRecord(
        index=index,
        phase=phase,
        session="s",
        turn=0,
        planned_ns=round(planned * MS),
        ended_ns=round((last if ended is None else ended) * MS),
        outcome=outcome,
        sent_ns=None if sent is None else round(sent * MS),
        chunk_ns=[round(t * MS) for t in chunks],
        chunk_tokens=list(tokens if tokens is not None else [1] * len(chunks)),
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
    )


def trial(load: Load, *, issue_start: float = 0, issue_end: float = 1000, started: float = 0) -> TrialRecord:
    """A trial record around hand-made requests; times in ms."""
    return TrialRecord(
        id="t",
        engine="e",
        workload="w",
        load=load,
        repeat=0,
        order=0,
        started_ns=round(started * MS),
        ended_ns=round(issue_end * MS),
        issue_start_ns=round(issue_start * MS),
        issue_end_ns=round(issue_end * MS),
        window=Window(round(issue_start * MS), round(issue_end * MS)),
        planned_requests=1,
        workload_sha256="0" * 64,
        verdict=Verdict.VALID,
    )
