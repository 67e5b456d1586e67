"""CPU time used by other processes during the trials, in one line."""

from statistics import median

from bakeoff.results.run.run import Run
from bakeoff.results.text.format import ABSENT, percent_text


def foreign_load_text(run: Run) -> str:
    """``median 0.6 %, at most 3.1 % of the cores``, or why it is unknown; empty if nothing was sampled."""
    sampled = [trial.metrics["foreign_cpu_share"] for trial in run.finished if trial.telemetry]
    shares = [value.value for value in sampled if value.value is not None]
    if not shares:
        return f"{ABSENT} ({sampled[0].reason})" if sampled else ""
    centre, most = (percent_text(share, 1) for share in (median(shares), max(shares)))
    coverage = "" if len(shares) == len(sampled) else f", known of {len(shares)} of {len(sampled)} trials"
    return f"median {centre}, at most {most} of the cores{coverage}"
