"""Where cases are tested: runs measured here, published runs, evaluated checkpoints, and arithmetic."""

import asyncio
import csv
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from engines import doctor
from engines.machine import machine as engine_machine
from engines.secrets import masked_data
from harness.claims.catalogue import Entry, experiment_of
from harness.claims.claim import Arithmetic, Case, Contrasted, Device, Evaluated, Side
from harness.claims.expression import evaluate, names_in
from harness.claims.verdict import CaseResult, Estimate, estimate, exact, outcome, repeats_needed
from harness.conduct.run import create_run, run_into
from harness.errors import BadClaim, EvaluationFailed
from harness.experiment.config import Experiment
from results.records import RunStatus, Verdict
from results.run import Run, Trial, load
from results.statistics.interval import Interval, reciprocal
from results.store import RunFolder, runs_below
from results.text.format import machine_text

PUBLISHED = Path(__file__).parents[2] / "docs" / "results"
_START_S, _EVALUATED_TOKENS_PER_S, _CALIBRATION_S = 12.0, 150.0, 60.0
"""Of an engine's start with its warm-up, of an evaluation, and of a calibration: rough, on two cores."""
_CALIBRATED = frozenset({"gptq", "awq", "w8a8"})


class Measurement(msgspec.Struct, frozen=True):
    """What a case's procedure gave.

    Attributes:
        estimate: of the quantity; None if there is none.
        why_absent: the reason.
        runs: ids of runs, or names of published ones.
        machine: on which these were measured.
        details: other figures.
        values: raw values by side and repeat.
    """

    estimate: Estimate | None
    why_absent: str | None = None
    runs: list[str] = []
    machine: str | None = None
    details: dict[str, float] = {}
    values: dict[str, dict[int, float]] = {}


class Lab(Protocol):
    """Tests cases; tests of this package have one of their own."""

    def missing(self, entry: Entry, case: Case) -> str | None:
        """What is missing to test a case here; None if nothing is."""
        ...

    def cost_s(self, entry: Entry, case: Case) -> float:
        """Roughly how long a case takes; what is measured already takes nothing."""
        ...

    def measure(self, entry: Entry, case: Case) -> Measurement:
        """Test a case that can be tested here."""
        ...


def result_of(entry: Entry, case: Case, lab: Lab) -> CaseResult:
    """Test one case, or state what is missing."""
    missing = lab.missing(entry, case)
    if missing is not None:
        return CaseResult(title=case.title, as_claimed=case.as_claimed, procedure=case.procedure, missing=missing)
    measured, expected = lab.measure(entry, case), entry.claim.expected
    estimated = measured.estimate
    decided = None if estimated is None else outcome(estimated, expected)
    return CaseResult(
        title=case.title,
        as_claimed=case.as_claimed,
        procedure=case.procedure,
        missing=measured.why_absent,
        interval=None if estimated is None else estimated.interval,
        outcome=decided,
        repeats=repeats_needed(estimated, expected) if estimated and decided == "unclear" else None,
        runs=measured.runs,
        machine=measured.machine,
        details=measured.details,
        values=measured.values,
    )


class RealLab:
    """Measures on this machine.

    Args:
        folder: of claims; ``runs`` and ``checkpoints`` are made in it.
    """

    def __init__(self, folder: Path) -> None:
        self._runs, self._checkpoints = folder / "runs", folder / "checkpoints"
        self._machine = engine_machine()
        self._has_gpu = bool(self._machine.gpus.names)
        self._findings: dict[str, doctor.Finding] = {}
        self._experiments: dict[tuple[Path, str], Experiment] = {}
        self._evaluations: dict[Evaluated, Measurement] = {}

    def missing(self, entry: Entry, case: Case) -> str | None:
        """See :class:`Lab`."""
        if case.absent is not None:
            return case.absent
        if case.published is not None:
            names = {side.run for side in case.published.sides}
            gone = [name for name in sorted(names) if not (PUBLISHED / name / "trials.csv").is_file()]
            return f"the published run {gone[0]}, which is in the repository's docs/results" if gone else None
        if case.device is Device.GPU and not self._has_gpu:
            return "an NVIDIA GPU"
        if case.device is Device.CPU and self._has_gpu:
            return "a machine without a GPU"
        contrasted = case.experiment
        if contrasted is None:
            return None
        lacks = (self._lack(entry, side) for side in contrasted.sides)
        return next((lack for lack in lacks if lack), None)

    def cost_s(self, entry: Entry, case: Case) -> float:
        """See :class:`Lab`."""
        if evaluated := case.evaluation:
            return 0.0 if evaluated in self._evaluations else _evaluation_s(evaluated)
        runs = {side.run for side in case.experiment.sides} if case.experiment else set[str]()
        return sum(self._run_s(entry, run) for run in sorted(runs))

    def measure(self, entry: Entry, case: Case) -> Measurement:
        """See :class:`Lab`.

        Raises:
            KeyboardInterrupt: Ctrl-C; finished trials are kept and reused.
        """
        if case.arithmetic is not None:
            return computed(case.arithmetic)
        if case.evaluation is not None:
            if case.evaluation not in self._evaluations:
                self._evaluations[case.evaluation] = self._evaluated(case.evaluation)
            return self._evaluations[case.evaluation]
        if case.published is not None:
            return _published(case.published)
        assert case.experiment is not None
        runs = {side.run: self._run(entry, side.run) for side in case.experiment.sides}
        values = {side.text: _values(case.experiment.metric, runs[side.run], side) for side in case.experiment.sides}
        ids = [run.path.name for run in runs.values()]
        return contrasted_measurement(case.experiment, values, ids, machine_text(next(iter(runs.values())).manifest))

    def _lack(self, entry: Entry, side: Side) -> str | None:
        """What one engine of a run lacks here."""
        experiment = self._whole(entry, side.run)
        engine = next((each for each in experiment.engines if each.name == side.engine), None)
        if engine is None:
            raise BadClaim(f"{entry.name}.toml: run '{side.run}' has no engine '{side.engine}'")
        if side.load not in {load.label for load in experiment.loads}:
            raise BadClaim(f"{entry.name}.toml: run '{side.run}' has no load '{side.load}'")
        for needed in (experiment.workload.options.get("path"), experiment.model.path):
            if needed and not Path(needed).expanduser().exists():
                return f"{needed}, below the folder where the command runs"
        found = self._finding(engine.adapter)
        fix = f": {found.fix}" if found.fix else ""
        return f"{engine.adapter} ({', '.join(found.missing)}{fix})" if found.missing else None

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
        experiment = self._experiment(entry, run)
        return 0.0 if self._finished(experiment) else duration_s(experiment)

    def _finished(self, experiment: Experiment) -> RunFolder | None:
        """The newest complete run of this experiment."""
        wanted = masked_data(msgspec.to_builtins(experiment))
        for folder in reversed(runs_below(self._runs)):
            log = folder.read_log()
            started = log.started
            if started and started.experiment == wanted and folder.status(log) is RunStatus.COMPLETE:
                return folder
        return None

    def _run(self, entry: Entry, run: str) -> Run:
        """The run of an experiment, measured unless it is there; an interrupted one is resumed."""
        experiment = self._experiment(entry, run)
        folder = self._finished(experiment)
        if folder is None:
            earlier = [each for each in runs_below(self._runs) if _name(each) == experiment.name]
            folder = create_run(experiment, self._runs, earlier[-1] if earlier else None)
            if run_into(folder, experiment, earlier[-1] if earlier else None):
                raise KeyboardInterrupt
        return load(folder.path)

    def _evaluated(self, evaluated: Evaluated) -> Measurement:
        """Quantise if need be, evaluate, and derive the quantity."""
        from engines.models import resolve  # noqa: PLC0415  (it is slow to import, and few commands measure)
        from harness.quality.evaluation import EvaluationSettings  # noqa: PLC0415
        from harness.quality.evaluation import evaluate as evaluate_model  # noqa: PLC0415

        is_path = "/" in evaluated.model
        plain = resolve(*((None, evaluated.model) if is_path else (evaluated.model, None))).path
        checkpoint = plain if evaluated.method is None else str(self._quantised(evaluated, str(plain)))
        sizes = [_weight_bytes(Path(each)) for each in (checkpoint, str(plain))]
        if evaluated.quantity == "bytes_ratio":
            return Measurement(exact(sizes[0] / sizes[1]), details={"bytes": sizes[0], "plain bytes": sizes[1]})
        settings = EvaluationSettings(
            model=str(checkpoint),
            reference=str(plain),
            max_tokens=evaluated.max_tokens,
            dtype="float32",
            kv_cache_dtype=evaluated.kv_cache_dtype,
        )
        made = asyncio.run(evaluate_model(settings, lambda _done, _expected: None))
        assert made.perplexity_ratio is not None
        assert made.reference_perplexity is not None
        plain_perplexity = made.reference_perplexity.centre
        intervals: Mapping[str, Interval | None] = {
            "perplexity_ratio": made.perplexity_ratio,
            "perplexity_increase": _scaled(made.perplexity_ratio, plain_perplexity, -plain_perplexity),
            "retention": reciprocal(made.perplexity_ratio),
            "token_match": made.token_match,
            "kl_nats_per_token": made.kl_nats_per_token,
        }
        interval = intervals[evaluated.quantity]
        details = {"perplexity": made.perplexity.centre, "perplexity of the plain model": plain_perplexity}
        return Measurement(None if interval is None else Estimate(interval), made.kl_absent, details=details)

    def _quantised(self, evaluated: Evaluated, plain: str) -> Path:
        """The quantised checkpoint; the command goes on with one that is unfinished.

        Raises:
            EvaluationFailed: the command failed.
        """
        assert evaluated.method is not None
        out = self._checkpoints / f"{Path(evaluated.model).name}-{evaluated.method}"
        if not (out / "config.json").is_file():
            out.parent.mkdir(parents=True, exist_ok=True)
            tokens = ["--calibration-tokens", str(evaluated.calibration_tokens)]
            command = [sys.executable, "-m", "bakeoff", "models", "quantize", plain, "--method", evaluated.method]
            done = subprocess.run([*command, *tokens, "--out", str(out)], capture_output=True, text=True, check=False)
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
                raise EvaluationFailed(f"{evaluated.model} was not quantised with {evaluated.method}: {reason}")
        return out


def computed(arithmetic: Arithmetic) -> Measurement:
    """Evaluate the expressions of an arithmetic case."""
    beside = {name: evaluate(text, arithmetic.inputs) for name, text in arithmetic.beside.items()}
    return Measurement(exact(evaluate(arithmetic.expression, arithmetic.inputs)), details=beside)


def contrasted_measurement(
    contrasted: Contrasted, values: Mapping[str, Mapping[int, float]], runs: list[str], machine: str | None
) -> Measurement:
    """The quantity of the sides' values by repeat."""
    of, over = contrasted.of, contrasted.over
    interleaved = over is not None and over.run == of.run
    estimated = estimate(values[of.text], None if over is None else values[over.text], interleaved=interleaved)
    why = None
    if estimated is None:
        empty = [side.text for side in contrasted.sides if not values[side.text]]
        why = f"no VALID trial of {empty[0]} has the metric" if empty else "some values are not positive"
    return Measurement(estimated, why, runs, machine, values={side: dict(own) for side, own in values.items()})


def duration_s(experiment: Experiment) -> float:
    """Roughly how long a run takes on two cores."""
    trial = experiment.trial
    starts = experiment.repeats * len(experiment.engines)
    return len(experiment.plan()) * (trial.duration_s + 1.3 * trial.ramp_s + 2) + starts * _START_S


def _evaluation_s(evaluated: Evaluated) -> float:
    calibration = _CALIBRATION_S if evaluated.method in _CALIBRATED else 0.0
    seconds = calibration + (_CALIBRATION_S / 4 if evaluated.method else 0.0)
    return seconds + (0.0 if evaluated.quantity == "bytes_ratio" else evaluated.max_tokens / _EVALUATED_TOKENS_PER_S)


def _values(metric: str, run: Run, side: Side) -> dict[int, float]:
    """Repeat → quantity, over the VALID trials of a side that have it."""
    trials = (
        trial
        for trial in run.finished
        if (trial.record.engine, trial.record.load.label) == (side.engine, side.load)
        and trial.record.verdict is Verdict.VALID
    )
    return _quantities(metric, ((trial.record.repeat, _row(trial)) for trial in trials))


def _row(trial: Trial) -> dict[str, float | None]:
    row = {name: value.value for name, value in (trial.metrics | trial.server).items()}
    return row | {"agreement": trial.quality.summary.agreement if trial.quality and trial.quality.summary else None}


def _published(contrasted: Contrasted) -> Measurement:
    """Read published runs."""
    values = {side.text: _published_values(contrasted.metric, side) for side in contrasted.sides}
    names = list(dict.fromkeys(side.run for side in contrasted.sides))
    return contrasted_measurement(contrasted, values, names, _published_machine(PUBLISHED / names[0]))


def _published_values(metric: str, side: Side) -> dict[int, float]:
    with (PUBLISHED / side.run / "trials.csv").open(encoding="utf-8", newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["engine"], row["load"], row["verdict"]) == (side.engine, side.load, "VALID")
        ]
    return _quantities(metric, ((int(row["repeat"]), _numbers(row)) for row in rows))


def _numbers(row: Mapping[str, Any]) -> dict[str, float | None]:
    numbers: dict[str, float | None] = {}
    for name, text in row.items():
        try:
            numbers[name] = float(text)
        except (TypeError, ValueError):
            numbers[name] = None
    return numbers


def _published_machine(folder: Path) -> str | None:
    """Machine and date, from the third line of the page that publishing writes."""
    lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    return "; ".join(lines[2].split("; ")[:2]) if len(lines) > 2 else None


def _quantities(metric: str, rows: Iterable[tuple[int, Mapping[str, float | None]]]) -> dict[int, float]:
    wanted, values = names_in(metric), dict[int, float]()
    for repeat, row in rows:
        known = {name: value for name in wanted if (value := row.get(name)) is not None}
        if known.keys() == wanted:
            values[repeat] = evaluate(metric, known)
    return values


def _scaled(interval: Interval, factor: float, offset: float) -> Interval:
    low, high = (None if bound is None else bound * factor + offset for bound in (interval.low, interval.high))
    return msgspec.structs.replace(interval, centre=interval.centre * factor + offset, low=low, high=high)


def _weight_bytes(path: Path) -> float:
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    return float(sum(file.stat().st_size for file in files))


def _name(folder: RunFolder) -> str | None:
    started = folder.read_log().started
    return started.name if started else None
