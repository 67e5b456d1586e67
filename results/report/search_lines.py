"""A search in words: one line for each engine, and one for each trial while it goes on."""

from rich.console import Console
from rich.text import Text

from results.search import Attempt, Ended, EngineSearch, Over, SearchRecord
from results.text.findings import miss_sentence, sentences
from results.text.format import plain

_WANTED = {Over.RATE: "Highest rate", Over.CONCURRENCY: "Highest concurrency"}


def print_search(record: SearchRecord, console: Console) -> None:
    """Print the answers."""
    console.print(Text(f"{search_title(record)}:", "bold"))
    for line in search_lines(record):
        console.print(Text(f"  {plain(line)}"))


def search_title(record: SearchRecord) -> str:
    """``Highest rate that keeps ttft_p99<500ms and itl_p99<30ms``."""
    return f"{_WANTED[record.over]} that keeps {' and '.join(record.objectives)}"


def search_sentence(record: SearchRecord) -> str:
    """The answers alone: ``Highest rate that keeps ttft_p99<500ms: a 12.1/s [11.6, 12.6], b 14/s [13.2, 14.6].``."""
    answers = ", ".join(f"{one.engine} {_answer(record, one)}" for one in record.engines)
    return f"{search_title(record)}: {answers}."


def search_lines(record: SearchRecord) -> list[str]:
    """One line for each engine: the level with its interval, what fails above it, and what that took."""
    lines = [
        f"{one.engine}: {_answer(record, one)}{_beyond(record, one)}; {_ending(record, one)}" for one in record.engines
    ]
    return [f"{line} ({one.note})" if one.note else line for line, one in zip(lines, record.engines, strict=True)]


def attempt_text(record: SearchRecord, engine: str, attempt: Attempt) -> str:
    """``reference at 12.1/s: kept`` or what was missed."""
    words = {True: "kept", False: "not kept", None: "no evidence"}[attempt.kept]
    why = attempt_why(attempt)
    return f"{engine} at {level_text(record.over, attempt.level)}: {words}{f' ({why})' if why else ''}"


def attempt_why(attempt: Attempt) -> str:
    """Why it did not keep the objectives, or is no evidence; empty where it kept them."""
    return sentences(attempt.findings) or "; ".join(map(miss_sentence, attempt.misses))


def level_text(over: Over, level: float) -> str:
    """``12.1/s``, or ``c=12``."""
    return f"{level:g}/s" if over is Over.RATE else f"c={level:g}"


def _answer(record: SearchRecord, one: EngineSearch) -> str:
    def text(level: float) -> str:
        return level_text(record.over, level)

    if not one.judged:
        return "nothing is known"
    if one.level is None or one.high is None:
        return "none"
    if one.open_above:
        return f"at least {text(one.low)}" if one.low is not None else "nothing is known"
    low = "below the range" if one.low is None else f"{one.low:g}"
    return f"{text(one.level)} [{low}, {one.high:g}]"


def _beyond(record: SearchRecord, one: EngineSearch) -> str:
    """What the next higher level that was tried failed by."""
    failed = [attempt for attempt in one.judged if attempt.kept is False and attempt.level > (one.level or 0)]
    if not failed:
        return ""
    nearest = min(failed, key=lambda attempt: attempt.level)
    return f", at {level_text(record.over, nearest.level)} {attempt_why(nearest)}"


def _ending(record: SearchRecord, one: EngineSearch) -> str:
    trials = f"{len(one.attempts)} trial" + "s" * (len(one.attempts) != 1)
    match one.ended:
        case Ended.KNOWN:
            return trials
        case Ended.TRIALS:
            return f"{trials} were spent before it was known to ± {record.resolution:.0%}"
        case Ended.MINUTES:
            return f"{trials}, then the {record.minutes:g} minutes were over"
        case None:
            return f"{trials}, not ended"
        case Ended.NO_EVIDENCE:
            return f"{trials}, then no level was left that could be judged"
        case Ended.ENGINE:
            return f"{trials}, then the engine was lost"
