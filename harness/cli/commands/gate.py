"""The command ``bakeoff gate``."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts

from bakeoff.harness.cli.command import Command, Title, command, in_panels
from bakeoff.harness.cli.exits import EXIT_CANNOT_TELL, EXIT_INVALID, EXIT_OK, EXIT_REGRESSION
from bakeoff.harness.cli.measured import destination
from bakeoff.harness.cli.options import DEFAULT_OUT, Bands, EveryMetric, File, Json, Metrics, Out, Source, Texts, texts
from bakeoff.harness.cli.output import print_line, print_result

if TYPE_CHECKING:
    from bakeoff.results.compare.config import ComparisonConfig
    from bakeoff.results.compare.gate import GateVerdict, NoVerdict


def gate(
    experiment: Source | None = None,
    *,
    baseline: Texts,
    candidate: str,
    repeats: int | None = None,
    metric: Metrics = None,
    primary: str | None = None,
    alpha: float = 0.01,
    detect: str = "10%",
    start_noise: str | None = None,
    band: Bands | None = None,
    only_common: bool = False,
    out: Out = DEFAULT_OUT,
) -> "GateVerdict | NoVerdict":
    """Check a candidate for regressions.

    Compares stored runs, or with --metric perplexity two files of bakeoff models eval --json. Given an experiment, it
    measures two of its engines in alternation instead and stops as soon as the verdict is clear, without extra false
    alarms. Gate an engine against itself to learn the smallest change that this machine's noise lets you detect.

    Examples
    --------
    bakeoff gate --baseline runs/BASE --candidate runs/HEAD
    bakeoff gate experiment.toml --baseline base --candidate head --repeats 20
    bakeoff gate --baseline runs/BASE --candidate runs/HEAD --band 5% --markdown gate.md

    Parameters
    ----------
    experiment
        TOML file of a new measurement. Default: compare stored runs.
    baseline
        RUN or RUN@ENGINE (RUN: a folder, a file of export --as pytest-benchmark, or reports of llm-d), or branch:NAME
        for the newest runs of a branch; repeat the option to pool several runs. With an experiment: an engine's label.
        With --metric perplexity: FILE.
    candidate
        RUN or RUN@ENGINE. With an experiment: an engine's label. With --metric perplexity: FILE.
    repeats
        With an experiment: maximum repeats. Default: repeats of the file.
    metric
        Metric to compare and judge; repeat the option for several. Default: the table's headline metrics, of which
        medians, rates, failures and objectives count in the outcome. perplexity stands alone: no run has it.
    primary
        Metric that decides; the others are guardrails. Default: output_tokens_per_s at the highest concurrency, or
        ttft_p50_s at the last rate.
    alpha
        False alarm rate of the primary metric, and of all guardrails together.
    detect
        Exit 0 says that the primary metric is not worse by so much. A significant change for the worse is exit 1,
        however small. Perplexity uses its band.
    start_noise
        Standard deviation between starts (or stored runs) of one server under which exits 0 and 1 hold, where the
        trials do not show it: both servers stayed up, or the baseline is one or two runs. Default: what bakeoff lab
        floor measured on this machine, else 2%.
    band
        Largest change that the table calls the same: 5% for all ratio metrics (default 3%, of perplexity 1%), or one
        metric's, such as ttft_p99=10%, attainment=0.5pp, failures=0 (any significant change counts) or work=10%
        (difference in work done). Repeat the option for several.
    only_common
        Judge the load levels and guardrails that both sides have, though the candidate lacks others of the baseline,
        which is exit 3.
    out
        With an experiment: parent of the new run folder, or a store's address, as for bakeoff run.
    """
    from bakeoff.results.compare.config import agreed
    from bakeoff.results.compare.evaluation import perplexity_config
    from bakeoff.results.compare.gate import NoVerdict, judge_evaluations
    from bakeoff.results.errors import NoEvidence, NotComparable
    from bakeoff.results.metrics.catalogue import PERPLEXITY

    baselines, metrics = texts(baseline), texts(metric)
    if PERPLEXITY.name in metrics:
        _check_perplexity(experiment, baselines, metrics, primary)
        return judge_evaluations(Path(baselines[0]), Path(candidate), perplexity_config(alpha, band))
    if experiment is None and (repeats is not None or str(out) != str(DEFAULT_OUT)):
        raise NotComparable("stored runs are compared as they are; leave out --repeats and --out")
    config = agreed(metrics, primary, alpha, band, detect=detect, only_common=only_common, unseen_sd=start_noise)
    try:
        if experiment is None:
            return _stored(baselines, candidate, config)
        return _measured(experiment, _only_label(baselines), candidate, config, repeats=repeats, out=out)
    except NoEvidence as error:
        return NoVerdict(str(error))


def _check_perplexity(experiment: object, baseline: list[str], metrics: list[str], primary: str | None) -> None:
    from bakeoff.results.errors import NotComparable

    if experiment is not None or primary is not None or len(metrics) > 1 or len(baseline) > 1:
        raise NotComparable(
            "perplexity compares one --baseline FILE with one --candidate FILE of bakeoff models eval --json; leave "
            "out experiments, --primary and other metrics"
        )


def _only_label(baseline: list[str]) -> str:
    from bakeoff.harness.errors import BadExperiment

    if len(baseline) != 1:
        raise BadExperiment("an experiment has one baseline; give --baseline once, with an engine's label")
    return baseline[0]


def _stored(baseline: list[str], candidate: str, config: "ComparisonConfig") -> "GateVerdict":
    from bakeoff.results.compare.gate import judge
    from bakeoff.results.compare.sides import select
    from bakeoff.results.history.baseline import baseline_of

    selected = select(candidate)
    return judge(baseline_of(selected, baseline), selected, config)


def _measured(
    source: "Source", baseline: str, candidate: str, config: "ComparisonConfig", *, repeats: int | None, out: File
) -> "GateVerdict":
    """Measure the two engines and judge the run.

    Raises:
        KeyboardInterrupt: Ctrl-C; the finished trials are kept.
        NoEvidence: too few trials are valid, and the INVALID ones do not accuse the candidate.
    """
    from bakeoff.harness.conduct.policies.gate import InterimAnalyses, gate_experiment
    from bakeoff.harness.conduct.run import create_run, run_into
    from bakeoff.harness.conduct.run import gate as gate_policy
    from bakeoff.harness.experiment.reading import loaded_experiment
    from bakeoff.results import load
    from bakeoff.results.report import write_html

    experiment, a, b = gate_experiment(loaded_experiment(source), baseline, candidate, repeats)
    root, store = destination(out)
    folder = create_run(experiment, root)
    analyses = InterimAnalyses(folder, a, b, experiment.repeats, config)
    if run_into(folder, experiment, make_policy=gate_policy(analyses), store=store):
        print_line(f"interrupted: bakeoff report {folder.path} shows the finished trials")
        raise KeyboardInterrupt

    run = load(folder.path)
    sys.stderr.write(f"report: {write_html(run)}\n")
    if run.manifest.failure:
        sys.stderr.write(f"{run.manifest.failure}\n")
    return analyses.final()


def _show(
    verdict: "GateVerdict | NoVerdict",
    *,
    markdown: Annotated[Path | None, cyclopts.Parameter()] = None,
    junit: Annotated[Path | None, cyclopts.Parameter()] = None,
    github: bool | None = None,
    every_metric: EveryMetric = False,
    json: Json = False,
) -> None:
    """Print a verdict, and write it for CI.

    Parameters
    ----------
    markdown
        Also write the verdict to this file as Markdown, for a pull request comment.
    junit
        Also write the verdict to this file as JUnit XML.
    github
        Print GitHub annotations. Default: inside GitHub Actions only.
    every_metric
        Print every metric. Default: those that matter most, in at most 30 lines.
    json
        Print the verdict as JSON.
    """
    from bakeoff.results.compare.gate import NoVerdict
    from bakeoff.results.report.comparisons import comparison_entries
    from bakeoff.results.report.gate import annotations, gate_markdown, junit_xml, print_gate

    tables = dict if isinstance(verdict, NoVerdict) else partial(comparison_entries, verdict.compared)
    print_result(verdict, partial(print_gate, every_metric=every_metric), json=json, tables=tables)
    if os.environ.get("GITHUB_ACTIONS") == "true" if github is None else github:
        (sys.stderr if json else sys.stdout).write(annotations(verdict))  # GitHub reads both; stdout must stay JSON
    if markdown is not None:
        _write(markdown, gate_markdown(verdict).encode(), "--markdown")
    if junit is not None:
        _write(junit, junit_xml(verdict), "--junit")


def _write(path: Path, content: bytes, option: str) -> None:
    from bakeoff.results.errors import NotWritable
    from bakeoff.results.files.atomic import write_atomic

    try:
        write_atomic(path, content)
    except NotWritable as error:
        raise NotWritable(str(error), f"choose another path with {option}") from error


def _exit_code(verdict: "GateVerdict | NoVerdict") -> int:
    from bakeoff.results.compare.gate import Outcome

    codes = {
        Outcome.NO_REGRESSION: EXIT_OK,
        Outcome.REGRESSION: EXIT_REGRESSION,
        Outcome.CANNOT_TELL: EXIT_CANNOT_TELL,
        Outcome.NO_EVIDENCE: EXIT_INVALID,
    }
    return codes[verdict.outcome]


_PANELS = {
    "Sides": "experiment baseline candidate repeats only_common",
    "Verdict": "metric primary alpha detect start_noise band",
    "Output": "out markdown junit github every_metric json",
}
COMMANDS = [Command("gate", in_panels(command(gate, _show, _exit_code), _PANELS), Title.LOOK, 30)]
