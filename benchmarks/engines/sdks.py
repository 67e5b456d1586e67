"""Bar 4: the services' own clients read our fakes, and our own engine, to the same tokens as our dialects.

For ``make bench-engines``. Answers that are easy to misread (half characters, special tokens, text that looks like an
event or an error, bursts, thoughts shown and hidden, failures before and after the first token) are given word for word
by fakes of TGI, Anthropic and OpenAI, and answers of random words by our reference engine. Each is read twice: by
our client and dialect, and by ``text-generation``, ``openai`` or ``anthropic``, in environments of their own. Texts,
token ids, counts, reasons of the end and errors must be equal.
"""

import argparse
import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec

from benchmarks.bars import Bars, model_argument
from benchmarks.engines.sdk import ours, theirs
from benchmarks.engines.sdk.answers import THOUGHTS, scripted
from benchmarks.engines.sdk.reading import Reading, differences
from engines.dialects import (
    AnthropicDialect,
    Dialect,
    OpenAiServiceDialect,
    ReferenceDialect,
    ResponsesDialect,
    TgiDialect,
    TgiNativeDialect,
)
from tests.engines.fakes.answers import ScriptedAnswer
from tests.engines.fakes.anthropic import FakeAnthropic
from tests.engines.fakes.openai import FakeOpenAi
from tests.engines.fakes.stage import running
from tests.engines.fakes.tgi import FakeTgi
from tests.harness.tiny_model import tiny_engine, tiny_model
from workloads import Message, Turn

LEAST_ANSWERS = 20
BOUND_TOKENS = 1000
REFUSALS = (429, 500)


class Route(msgspec.Struct, frozen=True):
    """One way of asking one server.

    Attributes:
        name: what the bars call it.
        server: which.
        dialect: ours.
        environment: of their client.
        driver: that uses it.
        call: which of its calls.
        chat: whether turns are chats.
    """

    name: str
    server: str
    dialect: Dialect
    environment: str
    driver: str
    call: str = ""
    chat: bool = False


def routes() -> Iterator[Route]:
    """Every pair of readers."""
    sdk = (theirs.SDKS.name, "openai_sdk.py")
    yield Route("tgi_native", "tgi", TgiNativeDialect(), theirs.TGI, "tgi_client.py")
    yield Route("tgi_chat", "tgi", TgiDialect(), *sdk, "chat", chat=True)
    yield Route("tgi_completions", "tgi", TgiDialect(), *sdk, "completions")
    yield Route("anthropic", "anthropic", AnthropicDialect(), theirs.SDKS.name, "anthropic_sdk.py", chat=True)
    yield Route("openai_chat", "openai", OpenAiServiceDialect(), *sdk, "chat", chat=True)
    yield Route("openai_completions", "openai", OpenAiServiceDialect(), *sdk, "completions")
    yield Route("openai_responses", "openai", ResponsesDialect(official=True), *sdk, "responses", chat=True)
    yield Route("reference_chat", "reference", ReferenceDialect(), *sdk, "chat", chat=True)
    yield Route("reference_completions", "reference", ReferenceDialect(), *sdk, "completions")


def turns(route: Route) -> dict[str, Turn]:
    """What is asked, by the answer's name; the last one is too long for the reference engine, which refuses it."""
    if route.server == "reference":
        words = {f"words-{number}": f"Tell me about number {number}" for number in range(24)}
        asked = {name: (text, 3 + 5 * number) for number, (name, text) in enumerate(words.items())}
        asked["too-long"] = ("long " * 3000, 40)
    else:
        without = THOUGHTS if route.call == "completions" else ()
        asked = {name: (name, BOUND_TOKENS) for name in scripted() if name not in without}
    return {name: _turn(text, bound, chat=route.chat) for name, (text, bound) in asked.items()}


def _turn(text: str, bound: int, *, chat: bool) -> Turn:
    if chat:
        return Turn(1, bound, messages=(Message("system", "Be exact."), Message("user", text)))
    return Turn(1, bound, prompt=text)


@contextlib.asynccontextmanager
async def servers(model: Path, folder: Path) -> AsyncIterator[dict[str, str]]:
    """The three fakes and the reference engine with a tiny model; yields their addresses."""
    answers = scripted()
    tiny = tiny_model(folder / "tiny", model)
    async with (
        running(FakeTgi(answers=answers)) as tgi,
        running(FakeAnthropic(answers=answers)) as anthropic,
        running(FakeOpenAi(answers=answers)) as openai,
        tiny_engine(tiny, folder / "engine.log", max_model_len=512, num_blocks=400) as reference,
    ):
        yield {"tgi": tgi, "anthropic": anthropic, "openai": openai, "reference": reference}


async def compare(route: Route, url: str, python: Path) -> tuple[int, int]:
    """Read every answer of a route twice; returns how many there were and how many differed."""
    asked = turns(route)
    requests = [route.dialect.request(turn, "m") for turn in asked.values()]
    job = theirs.Job(url, route.call, theirs.bodies_of([request.body for request in requests]))
    mine = await ours.read_all(url, route.dialect, requests)
    yours = await theirs.read_all(python, route.driver, job)
    return len(asked), sum(_differs(route, name, a, b) for name, a, b in zip(asked, mine, yours, strict=True))


def _differs(route: Route, name: str, mine: Reading, yours: Reading) -> bool:
    script = scripted().get(name, ScriptedAnswer()) if route.server == "openai" else ScriptedAnswer()
    found = differences(mine, yours, script.hidden)
    for line in found:
        print(f"{route.name}, {name}: {line}")
    return bool(found)


async def refused(bars: Bars, python: dict[str, Path]) -> None:
    """Refusals by status: both say the same, and neither tries again, which their clients do unless told not to."""
    for kind, name in ((FakeOpenAi, "openai_chat"), (FakeAnthropic, "anthropic")):
        route = next(one for one in routes() if one.name == name)
        request = route.dialect.request(_turn("Hi", 5, chat=True), "m")
        ready = [status for status in REFUSALS for _ in range(2)] + [500] * 20
        fake = kind(refusals=ready)
        bad = 0
        async with running(fake) as url:
            job = theirs.Job(url, route.call, theirs.bodies_of([request.body]))
            for _ in REFUSALS:
                (mine,) = await ours.read_all(url, route.dialect, [request])
                (yours,) = await theirs.read_all(python[route.environment], route.driver, job)
                bad += _differs(route, "refused", mine, yours)
        bars.add(f"{name}_refusals_that_differ", bad, "==", 0)
        bars.add(
            f"{name}_requests_for_{2 * len(REFUSALS)}_refusals",
            len(ready) - len(fake.refusals),
            "==",
            2 * len(REFUSALS),
        )


async def measure(model: Path) -> Bars:
    """All routes."""
    bars = Bars()
    python = {name: place.python for name, place in theirs.environments().items()}
    with tempfile.TemporaryDirectory(prefix="bakeoff-") as folder:
        async with servers(model, Path(folder)) as urls:
            for route in routes():
                count, bad = await compare(route, urls[route.server], python[route.environment])
                bars.add(f"{route.name}_answers", count, ">=", LEAST_ANSWERS)
                bars.add(f"{route.name}_answers_that_differ", bad, "==", 0)
    await refused(bars, python)
    return bars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    asyncio.run(measure(Path(parser.parse_args().model))).finish()


if __name__ == "__main__":
    main()
