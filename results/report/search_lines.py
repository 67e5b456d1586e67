"""A capacity search as text: one line for each engine, and one for each trial during the search."""

from rich.console import Console
from rich.text import Text

from bakeoff.results.log.search import Attempt, Ended, EngineSearch, Over, SearchConfig, SearchRecord, Skip
from bakeoff.results.text.findings import sentences, violation_sentence
from bakeoff.results.text.format import percent_text, plain

_TITLES = {Over.RATE: "Highest rate", Over.CONCURRENCY: "Highest concurrency"}


def print_search(record: SearchRecord, console: Console) -> None:
    """Print the answers."""
    console.print(Text(f"{search_title(record)}:", "bold"))
    for line in search_lines(record):
        console.print(Text(f"  {plain(line)}"))


def search_title(record: SearchRecord) -> str:
    """``Highest rate that meets ttft_p99<500ms and itl_p99<30ms``."""
    texts = [objective.text for objective in record.config.objectives]
    return f"{_TITLES[record.config.over]} that meets {' and '.join(texts)}"


def search_sentence(record: SearchRecord) -> str:
    """The answers alone: ``Highest rate that meets ttft_p99<500ms: a 12.1/s [11.6, 12.6], b 14/s [13.2, 14.6].``."""
    over = record.config.over
    answers = ", ".join(f"{search.engine} {_answer(over, search)}" for search in record.engines)
    return f"{search_title(record)}: {answers}."


def search_lines(record: SearchRecord) -> list[str]:
    """One line for each engine: the level with its interval, what fails above it, and the number of trials."""
    return [_line(record.config, search) for search in record.engines]


def attempt_text(over: Over, engine: str, attempt: Attempt) -> str:
    """``reference at 12.1/s: met``, or what was violated."""
    outcome = {True: "met", False: "violated", None: "no evidence"}[attempt.met]
    why = attempt_why(attempt)
    return f"{engine} at {level_text(over, attempt.level)}: {outcome}{f' ({why})' if why else ''}"


def attempt_why(attempt: Attempt) -> str:
    """Why it violated the objectives, or is no evidence; empty if it met them."""
    return sentences(attempt.findings) or "; ".join(map(violation_sentence, attempt.violations))


def level_text(over: Over, level: float) -> str:
    """``12.1/s``, or ``c=12``."""
    return f"{level:g}/s" if over is Over.RATE else f"c={level:g}"


def skip_text(over: Over, skip: Skip) -> str:
    """``up to 64/s: 500 requests are planned, 662 are needed``."""
    if skip.attempt is not None:
        why = attempt_why(skip.attempt)
    else:
        why = f"{skip.planned_requests} requests are planned, {skip.needed_requests} are needed"
    if skip.up_to is not None:
        return f"up to {level_text(over, skip.up_to)}: {why}"
    return f"not above {level_text(over, skip.above or 0.0)}: {why}"


def _line(config: SearchConfig, search: EngineSearch) -> str:
    line = f"{search.engine}: {_answer(config.over, search)}{_beyond(config.over, search)}; {_ending(config, search)}"
    note = search.lost or (skip_text(config.over, search.skip) if search.skip else None)
    return f"{line} ({note})" if note else line


def _answer(over: Over, search: EngineSearch) -> str:
    if not search.judged:
        return "nothing is known"
    if search.level is None or search.high is None:
        skipped = search.skip.up_to if search.skip else None
        return "none" if skipped is None else f"not known: levels up to {level_text(over, skipped)} were not judged"
    if search.open_above:
        if search.low is not None:
            return f"at least {level_text(over, search.low)}"
        met = [attempt.level for attempt in search.judged if attempt.met]
        return f"met at {level_text(over, max(met))}, too few trials for an interval" if met else "nothing is known"
    low = "below the range" if search.low is None else f"{search.low:g}"
    return f"{level_text(over, search.level)} [{low}, {search.high:g}]"


def _beyond(over: Over, search: EngineSearch) -> str:
    """The violations at the next higher level that was tried."""
    failed = [attempt for attempt in search.judged if attempt.met is False and attempt.level > (search.level or 0)]
    if not failed:
        return ""
    nearest = min(failed, key=lambda attempt: attempt.level)
    return f", at {level_text(over, nearest.level)} {attempt_why(nearest)}"


def _ending(config: SearchConfig, search: EngineSearch) -> str:
    trials = f"{len(search.attempts)} trial" + "s" * (len(search.attempts) != 1)
    match search.ended:
        case Ended.KNOWN:
            return trials
        case Ended.TRIALS:
            return f"{trials}, then the budget was spent: not known to ± {percent_text(config.resolution)}"
        case Ended.MINUTES:
            return f"{trials}, then the {config.minutes:g} minutes were over"
        case None:
            return f"{trials}, not ended"
        case Ended.NO_EVIDENCE:
            return f"{trials}, then no level was left that could be judged"
        case Ended.ENGINE:
            return f"{trials}, then the engine was lost"
