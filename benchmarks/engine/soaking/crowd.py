"""The users of the soak, and what became of everything that they did."""

import asyncio
import json
import random
import time
from collections import Counter

import aiohttp

from benchmarks.engine.soaking.client import Client, WrongAnswer
from benchmarks.engine.soaking.kinds import KINDS

STUCK, WRONG, BROKEN = "stuck", "wrong", "broken"
_COMPLAINTS = 20  # kept to be printed


class Tally:
    """Counts outcomes by kind: a status, None for no answer, or one of the three words above."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, int | str | None]] = Counter()
        self.seconds: dict[str, list[float]] = {name: [] for name in KINDS}
        self.complaints: list[str] = []

    def add(self, kind: str, outcome: int | str | None, seconds: float, message: str = "") -> None:
        """One act that is over."""
        self.outcomes[kind, outcome] += 1
        self.seconds[kind].append(seconds)
        if outcome not in KINDS[kind].expected and len(self.complaints) < _COMPLAINTS:
            self.complaints.append(f"{kind} after {seconds:.1f} s: {outcome} {message}".rstrip())

    def unexpected(self, *words: str) -> int:
        """How many outcomes are not in order: those of the given words, or, without any, all others."""
        bad = [(out, n) for (kind, out), n in self.outcomes.items() if out not in KINDS[kind].expected]
        named = {STUCK, WRONG, BROKEN}
        return sum(n for out, n in bad if (out in words if words else out not in named))

    def table(self) -> str:
        """One line for each kind."""
        lines = [f"{'kind':<16}{'acts':>8}{'median s':>10}{'longest s':>11}  outcomes"]
        for kind, seconds in self.seconds.items():
            if seconds:
                ended = {out: n for (name, out), n in self.outcomes.items() if name == kind}
                told = ", ".join(f"{'no answer' if out is None else out} {n}" for out, n in ended.items())
                middle = sorted(seconds)[len(seconds) // 2]
                lines.append(f"{kind:<16}{len(seconds):>8}{middle:>10.2f}{max(seconds):>11.2f}  {told}")
        return "\n".join(lines)


async def act(client: Client, kind: str, rng: random.Random, patience_s: float, tally: Tally) -> None:
    """Do one thing, and count how it ended; what takes longer than the patience is stuck."""
    began = time.monotonic()
    outcome: int | str | None
    message = ""
    try:
        async with asyncio.timeout(patience_s):
            outcome = await KINDS[kind].act(client, rng)
    except TimeoutError:
        outcome = STUCK
    except (WrongAnswer, json.JSONDecodeError, KeyError) as error:
        outcome, message = WRONG, f"{type(error).__name__}: {error}"
    except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
        outcome, message = BROKEN, f"{type(error).__name__}: {error}"
    tally.add(kind, outcome, time.monotonic() - began, message)


async def user(client: Client, seed: str, until_s: float, patience_s: float, tally: Tally) -> None:
    """Do one thing after the other until `until_s` on the monotonic clock."""
    rng = random.Random(seed)
    weights = [kind.weight for kind in KINDS.values()]
    while time.monotonic() < until_s:
        (kind,) = rng.choices([*KINDS], weights)
        # A generator of its own: what one act draws does not depend on how an earlier one ended.
        await act(client, kind, random.Random(rng.getrandbits(64)), patience_s, tally)
        await asyncio.sleep(rng.expovariate(20.0))
