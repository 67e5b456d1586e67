"""The command ``bakeoff compare``."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import cyclopts

from bakeoff.harness.cli.command import Command, Title, command
from bakeoff.harness.cli.options import Bands, Candidates, EveryMetric, Json, Metrics, texts
from bakeoff.harness.cli.output import print_notice, print_result

if TYPE_CHECKING:
    from bakeoff.results.attribution.difference import Difference
    from bakeoff.results.compare.comparison import EngineComparison


def compare(
    *runs: str,
    candidates: Candidates = None,
    metric: Metrics = None,
    primary: str | None = None,
    alpha: float = 0.05,
    band: Bands | None = None,
    parts: Annotated[bool, cyclopts.Parameter(negative="")] = False,
) -> "EngineComparison | list[Difference]":
    """Compare B with A: bakeoff compare A B, or A1 A2 A3 --with B1 B2.

    Each ratio B/A has an interval: over trials where a side is one run, over runs where it is several. One line says
    which noise it has seen, and what would undo the primary result. The guardrails (medians, rates, failures,
    objectives, and metrics that --metric names) are corrected for multiple comparisons (Holm); other metrics are judged
    by themselves.

    Examples
    --------
    bakeoff compare runs/A runs/B
    bakeoff compare runs/RUN@vllm runs/RUN@sglang --metric ttft_p99_s
    bakeoff compare runs/A1 runs/A2 runs/A3 --with runs/B1 runs/B2 runs/B3

    Parameters
    ----------
    runs
        Baseline and candidate: RUN, or RUN@ENGINE for one of its engines. RUN may be a file of export --as
        pytest-benchmark, or a benchmark report of llm-d or a folder of them. With --with all of them are the baseline.
    candidates
        Runs of the candidate. Three runs a side show the noise between runs.
    metric
        Metric to compare; repeat the option for several. Default: the table's headline metrics.
    primary
        Metric that counts most. Default: output_tokens_per_s at the highest concurrency, or ttft_p50_s at the last
        rate.
    alpha
        False alarm rate of the primary metric, and of all guardrails together.
    band
        Largest change that counts as equal: 5% for all ratio metrics (default 3%), or one metric's, such as
        ttft_p99=10%, attainment=0.5pp, failures=0 or work=10% (difference in work done). Repeat the option for several.
    parts
        Say instead which parts of the latency the change came from, of two profiled runs.
    """
    from bakeoff.results.compare.comparison import compare_sides
    from bakeoff.results.compare.config import agreed
    from bakeoff.results.compare.sides import select, together
    from bakeoff.results.errors import NotComparable

    if not (len(runs) == 2 if candidates is None else runs and candidates):
        raise NotComparable("compare takes two runs, A and B, or several: A1 A2 A3 --with B1 B2")
    if parts:
        if len(runs) != 2 or candidates is not None or metric or primary or band:
            raise NotComparable("--parts takes two profiled runs, A and B, and no option of the comparison")
        return _differences(*runs)
    a, b = (runs[:1], runs[1:]) if candidates is None else (runs, texts(candidates))
    of_a, of_b = (together([select(text) for text in side]) for side in (a, b))
    if set(of_a.places) == set(of_b.places):
        print_notice("A and B are the same trials: equal by construction")
    elif common := set(of_a.places) & set(of_b.places):
        print_notice(f"on both sides, which brings them closer: {', '.join(sorted(str(path) for path, *_ in common))}")
    return compare_sides(of_a, of_b, agreed(texts(metric), primary, alpha, band))


def _differences(a: str, b: str) -> "list[Difference]":
    """Which parts the change from one profiled run to another came from."""
    from bakeoff.harness.cli.stored import read
    from bakeoff.results.attribution.difference import differences, side

    sides = [
        side(read(location).attributions, engine, location)
        for location, _, engine in (text.partition("@") for text in (a, b))
    ]
    return differences(*sides)


def _show(
    compared: "EngineComparison | list[Difference]", *, every_metric: EveryMetric = False, json: Json = False
) -> None:
    """Print a comparison, or the parts of its change.

    Parameters
    ----------
    every_metric
        Print every metric. Default: those that matter most, in at most 30 lines.
    json
        Print the comparisons as JSON.
    """
    from bakeoff.results.report.compare_table import MAX_LINES, print_comparison
    from bakeoff.results.report.comparisons import comparison_entries
    from bakeoff.results.report.difference_table import print_differences

    if isinstance(compared, list):
        print_result(compared, print_differences, json=json)
        return
    print_table = partial(print_comparison, max_lines=None if every_metric else MAX_LINES)
    print_result(compared, print_table, json=json, tables=partial(comparison_entries, compared))


COMMANDS = [Command("compare", command(compare, _show), Title.LOOK, 20)]
