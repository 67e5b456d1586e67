"""Tests cases: by runs measured here, published runs, evaluated checkpoints, and arithmetic."""

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from bakeoff.engines import EngineError, doctor
from bakeoff.engines.machine import machine as engine_machine
from bakeoff.engines.models import resolve
from bakeoff.engines.secrets import masked_data
from bakeoff.harness.conduct.run import create_run, reusable, run_into
from bakeoff.harness.conduct.world import current_world
from bakeoff.harness.errors import EvaluationFailed
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.host.environment import VERSION, machine
from bakeoff.harness.quality.evaluation import EvaluationSettings
from bakeoff.harness.quality.evaluation import evaluate as evaluate_model
from bakeoff.results.compare.evaluation import Evaluation
from bakeoff.results.log.store import RunFolder, readable_runs, runs_below, runs_named
from bakeoff.results.records import RunStatus, Verdict
from bakeoff.results.run.run import Run, load
from bakeoff.results.text.format import machine_text
from benchmarks.claims.interpreter.catalogue import Entry, experiment_of
from benchmarks.claims.interpreter.claim import Case, Device, Evaluated, Side
from benchmarks.claims.interpreter.errors import BadClaim
from benchmarks.claims.interpreter.measurement import Measurement, computed, contrasted_measurement, quality
from benchmarks.claims.interpreter.trials import failure, is_published, published, trial_values
from benchmarks.claims.interpreter.verdict import CaseResult, Outcome, exact, outcome, repeats_needed

_START_S, _EVALUATED_TOKENS_PER_S, _CALIBRATION_S = 12.0, 150.0, 120.0
"""Seconds of an engine's start with its warm-up, tokens per second of an evaluation, seconds of a calibration: rough
values on two cores."""
_CALIBRATED = frozenset({"gptq", "awq", "w8a8"})


class Lab(Protocol):
    """Tests cases; tests of this package use another implementation."""

    def missing(self, entry: Entry, case: Case) -> str | None:
        """Names what is missing to test a case on this machine; None if nothing is."""
        ...

    def cost_s(self, entry: Entry, cases: Sequence[Case]) -> float:
        """Approximate duration of cases that can be tested here; nothing for those whose results are stored."""
        ...

    def measure(self, entry: Entry, case: Case) -> Measurement:
        """Test a case that can be tested here."""
        ...


def result_of(entry: Entry, case: Case, lab: Lab) -> CaseResult:
    """Test one case, or state what is missing."""
    missing = lab.missing(entry, case)
    if missing is not None:
        return CaseResult(title=case.title, as_claimed=case.as_claimed, procedure=case.procedure, missing=missing)
    expected = entry.claim.expected
    try:
        measured = lab.measure(entry, case)
    except (EngineError, EvaluationFailed) as error:  # the other claims can be tested all the same
        measured = Measurement(None, str(error), retry=True)
    estimated = measured.estimate
    decided = Outcome.UNCLEAR if estimated is None else outcome(estimated, expected)
    return CaseResult(
        title=case.title,
        as_claimed=case.as_claimed,
        procedure=case.procedure,
        why_absent=measured.why_absent,
        interval=None if estimated is None else estimated.interval,
        outcome=decided,
        repeats=repeats_needed(estimated, expected) if estimated and decided is Outcome.UNCLEAR else None,
        runs=measured.runs,
        machine=measured.machine,
        details=measured.details,
        values=measured.values,
        retry=measured.retry,
    )


class RealLab:
    """Measures on this machine.

    Args:
        folder: of claims; ``runs`` and ``checkpoints`` are created in it.
    """

    def __init__(self, folder: Path) -> None:
        self._runs, self._checkpoints = folder / "runs", folder / "checkpoints"
        self._machine = engine_machine()
        self._has_gpu = bool(self._machine.gpus.names)
        self._findings: dict[str, doctor.Finding] = {}
        self._experiments: dict[tuple[Path, str], Experiment] = {}
        self._measured: dict[tuple[Path, str], RunFolder | None] = {}
        self._left_s: dict[tuple[Path, str], float] = {}
        self._evaluations: dict[Evaluated, Evaluation] = {}

    def missing(self, entry: Entry, case: Case) -> str | None:
        """See :class:`Lab`."""
        if case.absent is not None:
            return case.absent
        if case.published is not None:
            names = {side.run for side in case.published.sides}
            absent = [name for name in sorted(names) if not is_published(name)]
            return f"the published run {absent[0]}, which is in the repository's docs/results" if absent else None
        if case.device is Device.GPU and not self._has_gpu:
            return "an NVIDIA GPU"
        if case.device is Device.CPU and self._has_gpu:
            return "a machine without a GPU"
        contrasted = case.experiment
        if contrasted is None:
            return None
        lacks = (self._lack(entry, side) for side in contrasted.sides)
        return next((lack for lack in lacks if lack), None)

    def cost_s(self, entry: Entry, cases: Sequence[Case]) -> float:
        """See :class:`Lab`."""
        evaluations = {_shared(case.evaluation): case.evaluation for case in cases if case.evaluation}
        runs = {side.run for case in cases if case.experiment for side in case.experiment.sides}
        seconds = [_evaluation_s(evaluated) for key, evaluated in evaluations.items() if key not in self._evaluations]
        return sum(seconds) + sum(self._run_s(entry, run) for run in sorted(runs))

    def measure(self, entry: Entry, case: Case) -> Measurement:
        """See :class:`Lab`.

        Raises:
            KeyboardInterrupt: Ctrl-C; finished trials are kept and reused.
        """
        if case.arithmetic is not None:
            return computed(case.arithmetic)
        if case.evaluation is not None:
            return self._evaluated(case.evaluation)
        if case.published is not None:
            return published(case.published)
        assert case.experiment is not None
        runs = {side.run: self._run(entry, side.run) for side in case.experiment.sides}
        sides = case.experiment.sides
        values = {side.text: trial_values(case.experiment.metric, runs[side.run], side) for side in sides}
        failures = {side.text: failure(runs[side.run], side) for side in sides}
        ids = [run.path.name for run in runs.values()]
        place = machine_text(next(iter(runs.values())).manifest)
        measurement = contrasted_measurement(case.experiment, values, ids, place, failures)
        return msgspec.structs.replace(measurement, retry=not all(_is_valid(run.folder) for run in runs.values()))

    def _lack(self, entry: Entry, side: Side) -> str | None:
        """Names what an engine of a run needs and this machine lacks; None if nothing."""
        experiment = self._whole(entry, side.run)
        engine = next((candidate for candidate in experiment.engines if candidate.name == side.engine), None)
        if engine is None:
            raise BadClaim(f"{entry.name}.toml: run '{side.run}' has no engine '{side.engine}'")
        if side.load not in {load.label for load in experiment.loads}:
            raise BadClaim(f"{entry.name}.toml: run '{side.run}' has no load '{side.load}'")
        of_classes = (each.workload.options.get("path") for each in experiment.classes)
        for needed in (experiment.workload.options.get("path"), *of_classes, experiment.model.path):
            if needed and not Path(needed).expanduser().exists():
                return f"{needed}, below the folder where the command runs"
        finding = self._finding(engine.adapter)
        fix = f": {finding.fix}" if finding.fix else ""
        return f"{engine.adapter} ({', '.join(finding.missing)}{fix})" if finding.missing else None

    def _finding(self, adapter: str) -> doctor.Finding:
        if adapter not in self._findings:
            self._findings[adapter] = doctor.examine([adapter], self._machine)[0]
        return self._findings[adapter]

    def _whole(self, entry: Entry, run: str) -> Experiment:
        key = entry.folder, run
        if key not in self._experiments:
            self._experiments[key] = experiment_of(entry.experiment(run), run)
        return self._experiments[key]

    def _experiment(self, entry: Entry, run: str) -> Experiment:
        """The experiment with only those engines that can run here."""
        experiment = self._whole(entry, run)
        engines = [engine for engine in experiment.engines if not self._finding(engine.adapter).missing]
        return msgspec.structs.replace(experiment, engines=engines)

    def _run_s(self, entry: Entry, run: str) -> float:
        """Approximate duration of a run's trials that no earlier run has VALID."""
        if self._known(entry, run):
            return 0.0
        key = entry.folder, run
        if key not in self._left_s:
            experiment = self._experiment(entry, run)
            planned = len(experiment.plan())
            valid = max(map(_valid_trials, self._matching(entry, run)), default=0)
            self._left_s[key] = duration_s(experiment) * (1 - min(valid, planned) / planned)
        return self._left_s[key]

    def _known(self, entry: Entry, run: str) -> RunFolder | None:
        """The run that this call measured, or an earlier one of this machine and version whose trials are all VALID."""
        key = entry.folder, run
        if key not in self._measured:
            self._measured[key] = next((folder for folder in self._matching(entry, run) if _is_valid(folder)), None)
        return self._measured[key]

    def _matching(self, entry: Entry, run: str) -> list[RunFolder]:
        """The runs of an experiment on this machine with this version."""
        wanted = masked_data(msgspec.to_builtins(self._experiment(entry, run)))
        here = machine(current_world().provenance().environment), VERSION
        return [
            folder
            for folder, log in readable_runs(runs_below(self._runs))
            if (started := log.started) is not None
            and started.experiment == wanted
            and (machine(started.environment), started.bakeoff_version) == here
        ]

    def _run(self, entry: Entry, run: str) -> Run:
        """The run of an experiment; if there is none, a new one that reuses earlier VALID trials."""
        folder = self._known(entry, run)
        if folder is None:
            experiment = self._experiment(entry, run)
            earlier = self._matching(entry, run) or list(runs_named(self._runs, experiment.name))[::-1]
            fullest = max(earlier, key=lambda candidate: len(candidate.read_log().finished), default=None)
            folder = create_run(experiment, self._runs, fullest)
            if run_into(folder, experiment, fullest):
                raise KeyboardInterrupt
            self._measured[entry.folder, run] = folder
        return load(folder.path)

    def _evaluated(self, evaluated: Evaluated) -> Measurement:
        """Quantise if need be, evaluate, and derive the quantity."""
        plain = _plain(evaluated.model)
        checkpoint = plain if evaluated.method is None else self._quantised(evaluated, plain)
        if evaluated.quantity == "bytes_ratio":
            sizes = _weight_bytes(checkpoint), _weight_bytes(plain)
            return Measurement(exact(sizes[0] / sizes[1]), details={"bytes": sizes[0], "plain bytes": sizes[1]})
        key = _shared(evaluated)
        if key not in self._evaluations:
            settings = EvaluationSettings(
                model=str(checkpoint),
                reference=str(plain),
                max_tokens=evaluated.max_tokens,
                dtype="float32",
                kv_cache_dtype=evaluated.kv_cache_dtype,
            )
            self._evaluations[key] = asyncio.run(evaluate_model(settings, lambda _done, _expected: None))
        return quality(evaluated.quantity, self._evaluations[key])

    def _quantised(self, evaluated: Evaluated, plain: Path) -> Path:
        """The quantised checkpoint; continues one that is unfinished.

        Raises:
            EvaluationFailed: the command failed.
        """
        assert evaluated.method is not None
        made_from = f"{plain.resolve()} {evaluated.calibration_tokens}"
        mark = hashlib.sha256(made_from.encode()).hexdigest()[:8]
        out = self._checkpoints / f"{Path(evaluated.model).name}-{evaluated.method}-{mark}"
        if not (out / "config.json").is_file():
            out.parent.mkdir(parents=True, exist_ok=True)
            tokens = ["--calibration-tokens", str(evaluated.calibration_tokens)]
            command = [sys.executable, "-m", "bakeoff", "models", "quantize", str(plain), "--method"]
            process = subprocess.run(
                [*command, evaluated.method, *tokens, "--out", str(out)], capture_output=True, text=True, check=False
            )
            if process.returncode:
                reason = (process.stderr.strip().splitlines() or ["no reason given"])[-1]
                raise EvaluationFailed(f"{evaluated.model} was not quantised with {evaluated.method}: {reason}")
        return out


def duration_s(experiment: Experiment) -> float:
    """Approximate duration of a run on two cores."""
    trial = experiment.trial
    starts = experiment.repeats * len(experiment.engines)
    return len(experiment.plan()) * (trial.duration_s + 1.3 * trial.ramp_s + 2) + starts * _START_S


def _shared(evaluated: Evaluated) -> Evaluated:
    """Key of an evaluation, which yields all quantities at once."""
    return msgspec.structs.replace(evaluated, quantity="")


def _plain(model: str) -> Path:
    """Folder of a known or given model."""
    is_path = "/" in model
    resolved = resolve(None if is_path else model, model if is_path else None, lambda _have, _total: None)
    return Path(resolved.path or model)


def _evaluation_s(evaluated: Evaluated) -> float:
    calibration = _CALIBRATION_S if evaluated.method in _CALIBRATED else 0.0
    seconds = calibration + (_CALIBRATION_S / 4 if evaluated.method else 0.0)
    return seconds + (0.0 if evaluated.quantity == "bytes_ratio" else evaluated.max_tokens / _EVALUATED_TOKENS_PER_S)


def _weight_bytes(path: Path) -> float:
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    return float(sum(file.stat().st_size for file in files))


def _valid_trials(folder: RunFolder) -> int:
    """Trials that need not be measured again."""
    usable = (record for kept in reusable(folder, is_search=False).values() for _, record in kept)
    return sum(record.verdict is Verdict.VALID for record in usable)


def _is_valid(folder: RunFolder) -> bool:
    """Whether a run is complete and all its trials are VALID."""
    log = folder.read_log()
    trials = log.finished.values()
    return folder.status(log) is RunStatus.COMPLETE and all(trial.verdict is Verdict.VALID for trial in trials)
