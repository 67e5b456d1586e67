"""A capacity search as text: one line for each engine, and one for each trial during the search."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from bakeoff.results.log.search import Attempt, Ended, EngineSearch, Over, SearchConfig, SearchRecord, Skip
from bakeoff.results.run.capacity import Capacity, Share
from bakeoff.results.text.findings import sentences, violation_sentence
from bakeoff.results.text.format import percent_text, plain

_TITLES = {Over.RATE: "Highest rate", Over.CONCURRENCY: "Highest concurrency"}


def print_search(record: SearchRecord, console: Console, capacities: Sequence[Capacity] = ()) -> None:
    """Print the answers for each tier, with those per GPU and per megawatt."""
    shares = {(capacity.tier, capacity.engine): capacity for capacity in capacities}
    for tier in record.config.objectives:
        for search in searches_of(record, tier):
            console.print(Text(plain(f"{carried(record.config, search)}."), "bold"), soft_wrap=True)
    console.print()
    for tier in record.config.objectives:
        console.print(Text(f"{search_title(record.config, tier)}:", "bold"))
        for search in searches_of(record, tier):
            console.print(Text(f"  {plain(search_line(record.config, search))}"))
            capacity = shares.get((tier, search.engine))
            if capacity is not None and (capacity.gpus.value or capacity.power_w.value):
                console.print(Text(f"    {plain(capacity_line(capacity))}", "dim"))


def searches_of(record: SearchRecord, tier: str) -> list[EngineSearch]:
    """The searches for one tier, by engine."""
    return [search for search in record.engines if search.tier == tier]


def search_title(config: SearchConfig, tier: str = "") -> str:
    """``Highest rate that meets ttft_p99<500ms and itl_p99<30ms``; of a tier, its name followed by its objectives."""
    texts = " and ".join(objective.text for objective in config.objectives[tier])
    return f"{_TITLES[config.over]} that meets {f'{tier} ({texts})' if tier else texts}"


def search_sentence(record: SearchRecord) -> str:
    """The answers alone, to be quoted: ``vllm carries 9 users at a time with ttft_p90<500ms (95 %: 8 to 10).``."""
    return " ".join(
        f"{carried(record.config, search)}."
        for tier in record.config.objectives
        for search in searches_of(record, tier)
    )


def carried(config: SearchConfig, search: EngineSearch) -> str:
    """What one engine carries for one tier, as a clause with its interval, or why that is not known."""
    bounds = " and ".join(objective.text for objective in config.objectives[search.tier])
    named = f"{search.tier} ({bounds})" if search.tier else bounds
    trials = f"{len(search.judged)} trial" + "s" * (len(search.judged) != 1)
    sure = percent_text(1 - config.alpha)
    met = [attempt.level for attempt in search.judged if attempt.met]
    if not search.judged or (search.level is None and search.skip is not None):
        return f"nothing is known of what {search.engine} carries with {named}"
    if search.level is None or search.high is None:
        return f"{search.engine} meets {named} at no level that was tried"
    if search.open_above:
        if search.low is None:
            tried = f"at {level_text(config.over, max(met))}" if met else "at no level that was tried"
            return f"{search.engine} meets {named} {tried}, after too few trials to say more"
        least = min(search.low, max(met, default=search.low))
        return f"{search.engine} carries at least {_amount(config.over, least)} with {named} ({sure}; {trials})"
    if not met:
        most = _amount(config.over, search.high)
        return f"{search.engine} carries at most {most} with {named}, which no trial met ({sure}; {trials})"
    low = f"{search.low:g} to" if search.low is not None else "at most"
    interval = f"{sure}: {low} {search.high:g}; {trials}"
    return f"{search.engine} carries {_amount(config.over, search.level)} with {named} ({interval})"


def _amount(over: Over, level: float) -> str:
    """``12.1 sessions a second``, ``1 user at a time``."""
    ending = "" if level == 1 else "s"
    return f"{level:g} session{ending} a second" if over is Over.RATE else f"{level:g} user{ending} at a time"


def search_lines(record: SearchRecord) -> list[str]:
    """One line for each engine and tier, which begins with the tier's name if it has one."""
    names = (f"{search.tier}: " if search.tier else "" for search in record.engines)
    return [f"{name}{search_line(record.config, search)}" for name, search in zip(names, record.engines, strict=True)]


def capacity_line(capacity: Capacity) -> str:
    """``per GPU 30 [28, 32], of 4; per MW of GPU power 41,700 [38,900, 44,400], at 2.88 kW``, or why not."""
    gpus, watts = capacity.gpus.value, capacity.power_w.value
    parts = (
        f"{share_text(capacity.per_gpu)}, of {gpus:g}" if gpus else f"not known: {capacity.gpus.reason}",
        f"{share_text(capacity.per_megawatt)}, at {power_text(watts)}"
        if watts
        else f"not known: {capacity.power_w.reason}",
    )
    return f"per GPU {parts[0]}; per MW of GPU power {parts[1]}"


def power_text(watts: float) -> str:
    """``712 W``, ``2.88 kW``."""
    return f"{watts / 1000:.3g} kW" if watts >= 1000 else f"{watts:.3g} W"


def share_text(share: Share | None) -> str:
    """``30 [28, 32]``, ``at least 30``; empty for None."""
    if share is None:
        return ""
    if share.level is None or share.high is None:
        return f"at least {_rounded(share.low or 0.0)}"
    low = "below the range" if share.low is None else _rounded(share.low)
    return f"{_rounded(share.level)} [{low}, {_rounded(share.high)}]"


def _rounded(value: float) -> str:
    return f"{float(f'{value:.3g}'):,g}"


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


def search_line(config: SearchConfig, search: EngineSearch) -> str:
    """The level with its interval, what fails above it, and the number of trials."""
    line = f"{search.engine}: {answer(config.over, search)}{_beyond(config.over, search)}; {_ending(config, search)}"
    note = search.lost or (skip_text(config.over, search.skip) if search.skip else None)
    return f"{line} ({note})" if note else line


def answer(over: Over, search: EngineSearch) -> str:
    """``12.1/s [11.6, 12.6]``, ``at least 64/s``, ``none``, or why nothing is known."""
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
            return f"{trials}, then the time was over ({config.minutes:g} min)"
        case None:
            return f"{trials}, not ended"
        case Ended.NO_EVIDENCE:
            return f"{trials}, then no level was left that could be judged"
        case Ended.ENGINE:
            return f"{trials}, then the engine was lost"
