"""The users of the soak, and a tally of the outcomes of their actions."""

import asyncio
import json
import random
import time
from collections import Counter

import aiohttp

from tests.acceptance.engine.soaking.client import Client, WrongAnswer
from tests.acceptance.engine.soaking.kinds import KINDS

STUCK, WRONG, BROKEN = "stuck", "wrong", "broken"
_MAX_COMPLAINTS = 20


class Tally:
    """Counts outcomes by kind of action: an HTTP status, None for no answer, or `STUCK`, `WRONG` or `BROKEN`."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, int | str | None]] = Counter()
        self.seconds: dict[str, list[float]] = {name: [] for name in KINDS}
        self.complaints: list[str] = []

    def add(self, kind: str, outcome: int | str | None, seconds: float, message: str = "") -> None:
        """Count an action that has ended."""
        self.outcomes[kind, outcome] += 1
        self.seconds[kind].append(seconds)
        if outcome not in KINDS[kind].expected and len(self.complaints) < _MAX_COMPLAINTS:
            self.complaints.append(f"{kind} after {seconds:.1f} s: {outcome} {message}".rstrip())

    def unexpected(self, *words: str) -> int:
        """Number of unexpected outcomes: those of the given words, or, without words, statuses and missing answers."""
        failures = [(out, n) for (kind, out), n in self.outcomes.items() if out not in KINDS[kind].expected]
        all_words = {STUCK, WRONG, BROKEN}
        return sum(n for out, n in failures if (out in words if words else out not in all_words))

    def table(self) -> str:
        """One line for each kind of action."""
        lines = [f"{'kind':<16}{'actions':>8}{'median s':>10}{'longest s':>11}  outcomes"]
        for kind, seconds in self.seconds.items():
            if seconds:
                counts = {out: n for (name, out), n in self.outcomes.items() if name == kind}
                outcomes = ", ".join(f"{'no answer' if out is None else out} {n}" for out, n in counts.items())
                median = sorted(seconds)[len(seconds) // 2]
                lines.append(f"{kind:<16}{len(seconds):>8}{median:>10.2f}{max(seconds):>11.2f}  {outcomes}")
        return "\n".join(lines)


async def act(client: Client, kind: str, rng: random.Random, timeout_s: float, tally: Tally) -> None:
    """Perform one action and count its outcome, which is `STUCK` after `timeout_s`."""
    began = time.monotonic()
    outcome: int | str | None
    message = ""
    try:
        async with asyncio.timeout(timeout_s):
            outcome = await KINDS[kind].act(client, rng)
    except TimeoutError:
        outcome = STUCK
    except (WrongAnswer, json.JSONDecodeError, KeyError) as error:
        outcome, message = WRONG, f"{type(error).__name__}: {error}"
    except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
        outcome, message = BROKEN, f"{type(error).__name__}: {error}"
    tally.add(kind, outcome, time.monotonic() - began, message)


async def user(client: Client, seed: str, end_s: float, timeout_s: float, tally: Tally) -> None:
    """Perform random actions one after the other until `end_s` on the monotonic clock."""
    rng = random.Random(seed)
    weights = [kind.weight for kind in KINDS.values()]
    while time.monotonic() < end_s:
        (kind,) = rng.choices([*KINDS], weights)
        # Each action has its own generator, so that its draws do not depend on how earlier actions ended.
        await act(client, kind, random.Random(rng.getrandbits(64)), timeout_s, tally)
        await asyncio.sleep(rng.expovariate(20.0))
