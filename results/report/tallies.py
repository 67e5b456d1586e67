"""What engines did in their trials, in words."""

from results.reliability import Offence, Tally

_DEEDS = {
    Offence.NOT_STARTED: "did not start or died between trials",
    Offence.DIED: "died",
    Offence.FAILED: "failed too many requests",
    Offence.SATURATED: "fell behind its arrivals",
}


def tally_text(tally: Tally, a: str, b: str) -> str:
    """``trials at c=8: branch died in 2 of 8, main in 0 of 8``.

    Args:
        tally: what was counted.
        a: what the baseline is called.
        b: the candidate.
    """
    where = "starts" if tally.level is None else f"trials at {tally.level}"
    counts = [f"{count} of {whole}" for count, whole in (tally.b, tally.a)]
    if tally.offence is Offence.NOT_STARTED:
        counts = ["1 time" if count == 1 else f"{count} times" for count, _ in (tally.b, tally.a)]
    p_value = "" if tally.p_value is None else f" (Fisher: p {tally.p_value:.2g})"
    of_b, of_a = (f"{'' if tally.offence is Offence.NOT_STARTED else 'in '}{count}" for count in counts)
    return f"{where}: {b} {_DEEDS[tally.offence]} {of_b}, {a} {of_a}{p_value}"
