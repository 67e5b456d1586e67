"""Decodes the raw logs of stored trials: of those that were cut off, and of those that an earlier version counted."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.engines import dialect
from bakeoff.engines.errors import EngineError
from bakeoff.engines.identification import tokenizer_folder
from bakeoff.harness.client import decode_stream
from bakeoff.harness.experiment.config import EngineConfig, ModelConfig, TrialConfig
from bakeoff.harness.verdict.judge import judge_again
from bakeoff.results.errors import ResultsError, RunUnreadable
from bakeoff.results.files.integrity import RESTORE
from bakeoff.results.log.recount import RECOUNTED
from bakeoff.results.log.run_log import Manifest
from bakeoff.results.log.store import RunFolder, TrialFolder
from bakeoff.results.records import DECODER, RequestRecord, TokenSource, TrialRecord
from bakeoff.workloads import APPROXIMATE, Tokenizer
from bakeoff.workloads.errors import WorkloadError


def recover(run: RunFolder, *, most_bytes: int | None = None, notify: Callable[[str], object] = lambda _: None) -> int:
    """Decode the recorded streams of trials that were cut off, or whose tokens were counted by earlier rules.

    Counts of earlier rules stay where their tokenizer is not on this machine, and where nothing can be written.

    Args:
        run: its folder.
        most_bytes: leave trials with larger raw logs as they are; None decodes all.
        notify: called with one line where trials are counted again.

    Returns:
        Number of decoded trials.

    Raises:
        RunUnreadable: the log of the run or of a trial is damaged, or a finished trial is decoded differently here.
        NotWritable: the requests of a trial that was cut off cannot be stored.
    """
    log = run.read_log()
    manifest = run.read_manifest(log)
    finished = log.finished
    plans = [*manifest.trials, *manifest.profiled]
    folders = [(p, run.trial_of(finished[p.id]) if p.id in finished else run.trial(p.id)) for p in plans]
    for _, folder in folders:
        folder.require()
    with_streams = [
        (plan, folder)
        for plan, folder in folders
        if folder.stream_logs() and (most_bytes is None or folder.stream_bytes <= most_bytes)
    ]
    outdated = [(p, folder) for p, folder in with_streams if p.id in finished and finished[p.id].decoder < DECODER]
    cut_off = [pair for pair in with_streams if pair not in outdated and not pair[1].has_requests()]
    if not cut_off and not outdated:
        return 0
    decoded = _Decoder(manifest.experiment)
    for plan, folder in cut_off:
        folder.remove_parts()
        folder.write_requests(decoded(plan.engine, folder))
        _refuse_other_requests(folder)
    outdated = [(plan, folder) for plan, folder in outdated if decoded.is_possible(folder)]
    if outdated:
        notify(f"the tokens of {run.path} are counted again, by the rules of this version")
    for done, (plan, folder) in enumerate(outdated):
        try:
            _count_again(finished[plan.id], run.trial(plan.id, RECOUNTED), decoded(plan.engine, folder), manifest)
        except (ResultsError, EngineError) as error:  # the rest of the run can be read
            notify(f"{plan.id} and later trials keep the counts of the version that measured them: {error}")
            return len(cut_off) + done
    return len(cut_off) + len(outdated)


class _Decoder:
    """Decodes raw logs of a run.

    Args:
        experiment: as the run stored it.
    """

    def __init__(self, experiment: Mapping[str, Any]) -> None:
        self._engines: dict[str, EngineConfig] = {}
        for stored in experiment.get("engines", []):
            with contextlib.suppress(msgspec.ValidationError):  # of another version
                engine = msgspec.convert(stored, EngineConfig)
                self._engines[engine.name] = engine
        self._tokenizer = _tokenizer_here(msgspec.convert(experiment.get("model", {}), ModelConfig))

    def __call__(self, engine: str, folder: TrialFolder) -> Iterator[RequestRecord]:
        config = self._engines.get(engine)
        if config is None:
            raise RunUnreadable(f"{folder.path} cannot be decoded: the run does not say how '{engine}' was spoken to")
        api = dialect(config.adapter, config.options, config)
        return (decode_stream(stream, api, self._tokenizer) for stream in folder.read_streams())

    def is_possible(self, folder: TrialFolder) -> bool:
        """Whether a finished trial can be counted as well as when it was measured, with the tokenizer then."""
        if self._tokenizer is not None or not folder.has_requests():
            return True
        return not folder.read_requests().equal("token_source", TokenSource.TOKENIZER).any()


def _count_again(
    record: TrialRecord, folder: TrialFolder, requests: Iterable[RequestRecord], manifest: Manifest
) -> None:
    """Store the requests of a finished trial by the rules of this version, and its verdict."""
    folder.write_requests(requests)
    inside = folder.read_requests().under_load.planned_inside(record.window)
    share = manifest.experiment.get("trial", {}).get("max_failure_share", TrialConfig().max_failure_share)
    folder.write_recount(*judge_again(record.findings, inside, share))


def _refuse_other_requests(folder: TrialFolder) -> None:
    """Remove requests that were decoded again, unless they are those that were stored.

    Raises:
        RunUnreadable: they are not.
    """
    try:
        folder.read_requests()
    except RunUnreadable as error:
        folder.remove_requests()
        raise RunUnreadable(
            f"{folder.path} lacks its decoded requests, and its raw log is decoded differently here, where the version "
            f"of Bakeoff or the tokenizer is another; {RESTORE}"
        ) from error


def _tokenizer_here(model: ModelConfig) -> Tokenizer | None:
    """The model's tokenizer if it is on this machine already; never downloads."""
    folder = model.tokenizer or model.path or tokenizer_folder(model.name or "", None)
    try:
        return Tokenizer(Path(folder).expanduser()) if folder and folder != APPROXIMATE else None
    except WorkloadError:
        return None
