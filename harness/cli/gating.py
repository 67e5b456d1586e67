"""The command that guards a branch: gate."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts

from harness.cli.options import (
    DEFAULT_OUT,
    EXIT_CANNOT_TELL,
    EXIT_INTERRUPTED,
    EXIT_INVALID,
    EXIT_OK,
    EXIT_REGRESSION,
    Bands,
    Json,
    Metrics,
    Out,
    standard_output,
)

if TYPE_CHECKING:
    from results.comparison_config import ComparisonConfig
    from results.gate import GateVerdict

File = Annotated[Path | None, cyclopts.Parameter()]
Baselines = Annotated[list[str], cyclopts.Parameter(negative="")]


def gate(
    experiment: Path | None = None,
    *,
    baseline: Baselines,
    candidate: str,
    repeats: int | None = None,
    metric: Metrics = None,
    primary: str | None = None,
    alpha: float = 0.01,
    band: Bands = None,
    markdown: File = None,
    junit: File = None,
    github: bool | None = None,
    out: Out = DEFAULT_OUT,
    json: Json = False,
) -> int:
    """Check a candidate for regressions: exit 0 none, 1 regression, 2 cannot tell, 3 no evidence.

    Of stored runs; or, with an experiment, of two of its engines measured now, side by side: it ends as soon as the
    verdict is clear, and looking early costs no false alarms. An engine against itself shows what this machine's noise
    lets a gate see.

    Parameters
    ----------
    experiment
        TOML file: measure now. Without it the two sides are stored runs.
    baseline
        RUN or RUN@ENGINE, RUN a folder or a file of export --as pytest-benchmark; several, one option each, are one
        baseline that shows how runs differ; branch:NAME are the newest runs of a branch. With an experiment the label
        of an engine.
    candidate
        Likewise.
    repeats
        With an experiment: at most so many, instead of the file's.
    metric
        Metrics to compare; the default is the headline of the table.
    primary
        The metric that decides. The default is output_tokens_per_s at the highest concurrency, or ttft_p50_s at the
        last rate. The others are guardrails.
    alpha
        Share of false alarms of the primary metric, and of all others together.
    band
        What counts as the same: no regression means worse by no more than this. 5% is for all metrics compared as
        ratios (the default is 3%), ttft_p99=10%, attainment=0.5pp or failures=0 for one, 0 meaning any significant
        change, work=10% for how much the work of the sides may differ. May be given several times.
    markdown
        Write the verdict there, for a comment on a pull request.
    junit
        Write it there as JUnit XML.
    github
        Print GitHub's annotations; the default is to do so inside GitHub Actions.
    out
        With an experiment: folder in which the run's folder is made.
    json
        Print the verdict as JSON on stdout.
    """
    from results.comparison_config import agreed
    from results.errors import NoEvidence

    config = agreed(metric, primary, alpha, band)
    try:
        verdict = (
            _stored(baseline, candidate, config)
            if experiment is None
            else _measured(experiment, _label(baseline), candidate, config, repeats=repeats, out=out)
        )
    except NoEvidence as error:
        sys.stderr.write(f"bakeoff: INVALID: {error}\n")
        return EXIT_INVALID
    if verdict is None:
        return EXIT_INTERRUPTED
    _tell(verdict, json=json, github=os.environ.get("GITHUB_ACTIONS") == "true" if github is None else github)
    _write(verdict, markdown, junit)
    return _exit_code(verdict)


def floor(*runs: str, json: Json = False) -> int:
    """Store the noise between runs of this machine, for gates whose baseline is a single run.

    The runs are of one engine at one commit, five or more, each at least an hour after the one before. The floor is
    stored beside them, and found there by every later gate of the same traffic, model and limits.

    Parameters
    ----------
    runs
        RUN or RUN@ENGINE.
    json
        Print the floor as JSON on stdout.
    """
    from harness.cli.reading import print_json
    from results.aa_runs import floors_of
    from results.errors import NotComparable
    from results.floor import store_floors
    from results.report.floor_table import print_floors
    from results.sides import root_of, select

    sides = [select(run) for run in runs]
    roots = {root_of(side.run) for side in sides}
    if len(roots) != 1:
        raise NotComparable("name five or more runs of one folder")
    cells = floors_of(sides)
    path = store_floors(roots.pop(), cells)
    if json:
        print_json(cells)
    else:
        print_floors(cells, standard_output())
    sys.stderr.write(f"stored: {path}\n")
    return EXIT_OK


def _label(baseline: list[str]) -> str:
    from harness.errors import BadExperiment

    if len(baseline) != 1:
        raise BadExperiment("an experiment measures one baseline; give --baseline once, an engine's label")
    return baseline[0]


def _stored(baseline: list[str], candidate: str, config: "ComparisonConfig") -> "GateVerdict":
    from results.baseline import baseline_of
    from results.gate import judge
    from results.sides import select

    side = select(candidate)
    return judge(baseline_of(side, baseline), side, config)


def _measured(
    file: Path, baseline: str, candidate: str, config: "ComparisonConfig", *, repeats: int | None, out: Path
) -> "GateVerdict | None":
    """The verdict of a run that is made for it; None where it was interrupted.

    Raises:
        NoEvidence: too little of the run is valid, and what is not says nothing against the candidate.
    """
    from harness.conduct.policies.gate import InterimAnalyses, gate_experiment
    from harness.conduct.run import create_run, run_into
    from harness.conduct.run import gate as gate_policy
    from harness.experiment.config import load_experiment
    from results import load
    from results.report import write_html

    experiment, a, b = gate_experiment(load_experiment(file), baseline, candidate, repeats)
    folder = create_run(experiment, out)
    analyses = InterimAnalyses(folder, a, b, experiment.repeats, config)
    if run_into(folder, experiment, make_policy=gate_policy(analyses)):
        sys.stderr.write(f"interrupted: bakeoff report {folder.path} shows what there is\n")
        return None

    run = load(folder.path)
    sys.stderr.write(f"report: {write_html(run)}\n")
    if run.manifest.failure:
        sys.stderr.write(f"{run.manifest.failure}\n")
    return analyses.final()


def _tell(verdict: "GateVerdict", *, json: bool, github: bool) -> None:
    from harness.cli.reading import print_json
    from results.report.gate import annotations, print_gate

    if json:
        print_json(verdict)
    else:
        print_gate(verdict, standard_output())
    if github:
        (sys.stderr if json else sys.stdout).write(annotations(verdict))


def _write(verdict: "GateVerdict", markdown: Path | None, junit: Path | None) -> None:
    from results.atomic import write_atomic
    from results.report.gate import gate_markdown, junit_xml

    if markdown is not None:
        write_atomic(markdown, gate_markdown(verdict).encode())
    if junit is not None:
        write_atomic(junit, junit_xml(verdict))


def _exit_code(verdict: "GateVerdict") -> int:
    from results.gate import Outcome

    codes = {
        Outcome.NO_REGRESSION: EXIT_OK,
        Outcome.REGRESSION: EXIT_REGRESSION,
        Outcome.CANNOT_TELL: EXIT_CANNOT_TELL,
    }
    return codes[verdict.outcome]
