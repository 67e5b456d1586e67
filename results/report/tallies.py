"""How often engines failed trials, as text."""

from bakeoff.results.compare.reliability import FailureMode, Tally

_VERBS = {
    FailureMode.NOT_STARTED: "did not start or died between trials",
    FailureMode.DIED: "died",
    FailureMode.FAILED: "failed too many requests",
    FailureMode.SATURATED: "fell behind its arrivals",
    FailureMode.SLOWED: "became slower within the window, twice",
}


def tally_text(tally: Tally, a: str, b: str) -> str:
    """``trials at c=8: branch died in 2 of 8, main in 0 of 8``.

    Args:
        tally: the counts.
        a: name of the baseline.
        b: name of the candidate.
    """
    where = "starts" if tally.level is None else f"trials at {tally.level}"
    counts = [f"{count} of {whole}" for count, whole in (tally.b, tally.a)]
    if tally.failure_mode is FailureMode.NOT_STARTED:
        counts = ["1 time" if count == 1 else f"{count} times" for count, _ in (tally.b, tally.a)]
    p_value = "" if tally.p_value is None else f" (Boschloo: p {tally.p_value:.2g})"
    needed = "" if tally.trials_needed is None else f"; about {tally.trials_needed} of each side would decide"
    of_b, of_a = (f"{'' if tally.failure_mode is FailureMode.NOT_STARTED else 'in '}{count}" for count in counts)
    return f"{where}: {b} {_VERBS[tally.failure_mode]} {of_b}, {a} {of_a}{p_value}{needed}"
