"""The services' own clients read the same tokens from an answer as our dialects.

Fakes of TGI, Anthropic and OpenAI give scripted answers that are easy to misread: half characters, special tokens, text
that looks like an event or an error, bursts, visible and hidden thoughts, failures before and after the first token.
Our reference engine gives answers of random words. Each answer is read twice: by our client and dialect, and by
``text-generation``, ``openai`` or ``anthropic``, in environments of their own. Texts, token ids, counts, finish reasons
and errors must be equal.
"""

import argparse
import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec

from bakeoff.engines.dialects import (
    AnthropicDialect,
    Dialect,
    OpenAiServiceDialect,
    ReferenceDialect,
    ResponsesDialect,
    TgiDialect,
    TgiNativeDialect,
)
from bakeoff.workloads import Message, Turn
from benchmarks.bars import Bars, model_argument
from tests.acceptance.engines.sdk import dialect_reader, sdk_reader
from tests.acceptance.engines.sdk.answers import THOUGHTS, scripted
from tests.acceptance.engines.sdk.reading import Reading, differences
from tests.engines.fakes.answers import ScriptedAnswer
from tests.engines.fakes.anthropic import FakeAnthropic
from tests.engines.fakes.openai import FakeOpenAi
from tests.engines.fakes.stage import running
from tests.engines.fakes.tgi import FakeTgi
from tests.harness.tiny_model import tiny_engine, tiny_model

LEAST_ANSWERS = 20
BOUND_TOKENS = 1000
REFUSALS = (429, 500)


class Route(msgspec.Struct, frozen=True):
    """One way of asking one server.

    Attributes:
        name: as in the names of bars.
        server: name of the server.
        dialect: our dialect.
        environment: environment of the service's client.
        driver: script that runs that client.
        call: the client's method that the driver uses.
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
    """Every pair of a dialect and a client."""
    sdk = (sdk_reader.SDKS.name, "openai_sdk.py")
    yield Route("tgi_native", "tgi", TgiNativeDialect(), sdk_reader.TGI, "tgi_client.py")
    yield Route("tgi_chat", "tgi", TgiDialect(), *sdk, "chat", chat=True)
    yield Route("tgi_completions", "tgi", TgiDialect(), *sdk, "completions")
    yield Route("anthropic", "anthropic", AnthropicDialect(), sdk_reader.SDKS.name, "anthropic_sdk.py", chat=True)
    yield Route("openai_chat", "openai", OpenAiServiceDialect(), *sdk, "chat", chat=True)
    yield Route("openai_completions", "openai", OpenAiServiceDialect(), *sdk, "completions")
    yield Route("openai_responses", "openai", ResponsesDialect(official=True), *sdk, "responses", chat=True)
    yield Route("reference_chat", "reference", ReferenceDialect(), *sdk, "chat", chat=True)
    yield Route("reference_completions", "reference", ReferenceDialect(), *sdk, "completions")


def turns(route: Route) -> dict[str, Turn]:
    """The turns to send, by the answer's name; the reference engine refuses its last one, which is too long."""
    if route.server == "reference":
        words = {f"words-{number}": f"Tell me about number {number}" for number in range(24)}
        prompts = {name: (text, 3 + 5 * number) for number, (name, text) in enumerate(words.items())}
        prompts["too-long"] = ("long " * 3000, 40)
    else:
        excluded = THOUGHTS if route.call == "completions" else ()
        prompts = {name: (name, BOUND_TOKENS) for name in scripted() if name not in excluded}
    return {name: _turn(text, bound, chat=route.chat) for name, (text, bound) in prompts.items()}


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
    sent = turns(route)
    requests = [route.dialect.request(turn, "m") for turn in sent.values()]
    job = sdk_reader.Job(url, route.call, sdk_reader.bodies_of([request.body for request in requests]))
    dialect_readings = await dialect_reader.read_all(url, route.dialect, requests)
    sdk_readings = await sdk_reader.read_all(python, route.driver, job)
    readings = zip(sent, dialect_readings, sdk_readings, strict=True)
    return len(sent), sum(_differs(route, *named) for named in readings)


def _differs(route: Route, name: str, dialect_reading: Reading, sdk_reading: Reading) -> bool:
    script = scripted().get(name, ScriptedAnswer()) if route.server == "openai" else ScriptedAnswer()
    lines = differences(dialect_reading, sdk_reading, script.hidden)
    for line in lines:
        print(f"{route.name}, {name}: {line}")
    return bool(lines)


async def refused(bars: Bars, python: dict[str, Path]) -> None:
    """Compare the readings of refusals, and check that no client retries, as the SDKs do by default."""
    for fake_class, name in ((FakeOpenAi, "openai_chat"), (FakeAnthropic, "anthropic")):
        route = next(route for route in routes() if route.name == name)
        request = route.dialect.request(_turn("Hi", 5, chat=True), "m")
        refusals = [status for status in REFUSALS for _ in range(2)] + [500] * 20
        fake = fake_class(refusals=refusals)
        differing = 0
        async with running(fake) as url:
            job = sdk_reader.Job(url, route.call, sdk_reader.bodies_of([request.body]))
            for _ in REFUSALS:
                (dialect_reading,) = await dialect_reader.read_all(url, route.dialect, [request])
                (sdk_reading,) = await sdk_reader.read_all(python[route.environment], route.driver, job)
                differing += _differs(route, "refused", dialect_reading, sdk_reading)
        bars.add(f"{name}_refusals_that_differ", differing, "==", 0)
        bars.add(
            f"{name}_requests_for_{2 * len(REFUSALS)}_refusals",
            len(refusals) - len(fake.refusals),
            "==",
            2 * len(REFUSALS),
        )


async def measure(model: Path) -> Bars:
    """Compare the readings of every route."""
    bars = Bars()
    python = {name: environment.python for name, environment in sdk_reader.environments().items()}
    with tempfile.TemporaryDirectory(prefix="bakeoff-") as folder:
        async with servers(model, Path(folder)) as urls:
            for route in routes():
                count, differing = await compare(route, urls[route.server], python[route.environment])
                bars.add(f"{route.name}_answers", count, ">=", LEAST_ANSWERS)
                bars.add(f"{route.name}_answers_that_differ", differing, "==", 0)
    await refused(bars, python)
    return bars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    asyncio.run(measure(Path(parser.parse_args().model))).finish()


if __name__ == "__main__":
    main()
