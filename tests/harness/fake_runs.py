"""Whole runs of the harness against a fake engine: one repeat, one level, no warm-up."""

import asyncio
from collections.abc import Set
from pathlib import Path
from typing import Any

from bakeoff import results
from bakeoff.harness.conduct.run import create_run, run_experiment
from bakeoff.harness.conduct.world import inside
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.virtual.runs import QUIET
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.records import Outcome, Phase, RequestRecord
from bakeoff.results.run.cells import Trial
from tests.engines.fakes.answers import Answering, by_tokenizer
from tests.engines.fakes.stage import WORDS, running, start_over
from tests.harness.in_process import InProcess
from tests.workloads.small_tokenizers import checkpoint

SHORT = {"ramp_s": 0.1, "duration_s": 0.3, "warm_up_s": 0.0, "max_foreign_share": 1.0}
"""A trial that is VALID even on a busy machine."""
PAUSED = {
    FindingCode.WINDOW_TOO_SHORT, FindingCode.WINDOW_EMPTY, FindingCode.CLIENT_LATE, FindingCode.CLIENT_STALLED,
    FindingCode.CLIENT_PAUSED, FindingCode.BECAME_SLOWER, FindingCode.BECAME_FASTER, FindingCode.ENGINE_FROZE,
}  # fmt: skip
"""What spoils so short a trial when the machine pauses all its processes for some 100 ms."""
ATTEMPTS = 10
"""Runs that are made until none of their trials is spoilt in that way; a busy machine may pause them several times."""


def tokenizer(tmp_path: Path) -> Path:
    """A small tokenizer's folder, made once for each test."""
    folder = tmp_path / "tok"
    said = 20 * "".join(f" {word}" for word in WORDS)  # each is a token, as the fakes count them
    return folder if folder.exists() else checkpoint(folder, merges=460, more=said)


async def measured_run(
    tmp_path: Path,
    engine: dict[str, Any],
    *,
    samples: bool = False,
    spoilt_by: Set[FindingCode] = PAUSED,
    **changes: Any,
) -> results.Run:
    """Run one trial of one engine; ``samples`` turns telemetry on, ``spoilt_by`` names the findings to run it again."""
    data: dict[str, Any] = {
        "name": "t",
        "repeats": 1,
        "model": {"name": "smol", "tokenizer": str(tokenizer(tmp_path))},
        "engines": [engine],
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5}},
        "loads": [{"concurrency": 3}],
        "trial": SHORT,
        "client": {"calibrate": False},
        "quality": {"samples": 0},
        **changes,
    }
    experiment = experiment_from(data, "t")
    with inside(InProcess(samples=samples)):
        for _ in range(ATTEMPTS):
            start_over()
            folder = create_run(experiment, tmp_path / "runs")
            await run_experiment(experiment, folder, QUIET)
            run = results.load(folder.path)
            if not any(finding.code in spoilt_by for trial in run.finished for finding in trial.record.findings):
                break
    return run


def attached_run(tmp_path: Path, fake: Answering, adapter: str, **changes: Any) -> results.Run:
    """As :func:`measured_run`, with a fake server, which counts tokens by the tokenizer unless configured otherwise."""
    if fake.counts_words:
        fake.count = by_tokenizer(tokenizer(tmp_path))
    config = {"adapter": adapter, **changes.pop("engine", {})}

    async def scene() -> results.Run:
        async with running(fake) as url:
            return await measured_run(tmp_path, {**config, "url": url}, **changes)

    return asyncio.run(scene())


def only(run: results.Run) -> tuple[Trial, list[RequestRecord]]:
    """The one trial of a run, and its measured requests; those of the ramp if all of them failed, which ends it."""
    (trial,) = run.finished
    phases = [Phase.MEASURED, Phase.RAMP]
    measured, ramp = ([request for request in trial.requests if request.phase is phase] for phase in phases)
    not_failed = {Outcome.OK, Outcome.CANCELLED}
    return trial, measured or [request for request in ramp if request.outcome not in not_failed]
