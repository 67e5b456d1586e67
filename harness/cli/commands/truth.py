"""The command ``bakeoff lab truth``: a mock server with known timing, or several that act as replicas of an engine."""

import contextlib
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import cyclopts

from bakeoff.harness.cli.command import Command, in_panels
from bakeoff.harness.cli.exits import EXIT_OK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bakeoff.harness.truth import Schedule

_Several = cyclopts.Parameter(negative="")
_STOPPING = (signal.SIGINT, signal.SIGTERM)


def serve_truth(
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    model: str = "truth",
    ttft_ms: float = 50.0,
    itl_ms: float = 10.0,
    tokens_per_chunk: int = 1,
    events_per_write: int = 1,
    slots: int | None = None,
    prompt_token_ms: float = 0.0,
    cache_tokens: Annotated[list[str] | None, _Several] = None,
    cache_block_tokens: int = 16,
    replicas: int | None = None,
    slow: Annotated[list[str] | None, _Several] = None,
    jitter: Literal["none", "exponential"] = "none",
    seed: int = 0,
    role_chunk: Literal["none", "with_first", "early"] = "none",
    finish_chunk: bool = True,
    comments: bool = False,
    crlf: bool = False,
    write_bytes: int | None = None,
    multibyte: bool = False,
    usage: Literal["exact", "absent", "lying"] = "exact",
    done: bool = True,
    token_ids: bool = True,
    kinds: str = "",
    hidden_tokens: int = 0,
    fault: Annotated[list[str] | None, _Several] = None,
    stall: Annotated[list[str] | None, _Several] = None,
    restart: str | None = None,
    core: Annotated[list[str] | None, _Several] = None,
    log: Path | None = None,
) -> int:
    """Serve a mock LLM with exactly known timing, to measure any client's own error, or replicas to compare routers.

    Runs until Ctrl-C. With --replicas, an option with REPLICA=VALUE applies to one of them, as in --slow 2=1.5.

    Examples
    --------
    bakeoff lab truth --port 8100 --ttft-ms 50 --itl-ms 10
    bakeoff lab truth --port 8100 --fault http_429=0.05 --log truth.jsonl
    bakeoff lab truth --replicas 3 --port 9101 --slots 8

    Parameters
    ----------
    port
        Port to listen on; 0 picks a free one. Further replicas listen on the ports after it.
    host
        Address to listen on.
    model
        Model name in /v1/models.
    ttft_ms
        Time from the request to the first chunk, in ms.
    itl_ms
        Time between two chunks, in ms.
    tokens_per_chunk
        Tokens in each chunk.
    events_per_write
        Chunks in each write; a write is due when its last chunk is.
    slots
        Concurrent answers; further requests wait in order. Unlimited by default.
    prompt_token_ms
        Time that each prompt token outside the prefix cache adds to the first chunk, in ms.
    cache_tokens
        TOKENS or REPLICA=TOKENS, repeatable: size of a simulated prefix cache. None by default.
    cache_block_tokens
        Tokens in each block of the prefix cache.
    replicas
        Number of servers, each in a process of its own and with a cache of its own.
    slow
        FACTOR or REPLICA=FACTOR, repeatable: factor on all times of answers.
    jitter
        Constant gaps, or gaps drawn from an exponential distribution with the same mean.
    seed
        Seed of gaps and faults.
    role_chunk
        Chat: send an empty chunk with the role, right before the first tokens or on arrival of the request.
    finish_chunk
        Send the finish reason in an empty chunk of its own, or with the last tokens.
    comments
        Send a comment between two chunks.
    crlf
        End lines of events with CRLF.
    write_bytes
        Send the body in pieces of at most this many bytes.
    multibyte
        Use tokens of two, three and four bytes.
    usage
        Report correct usage, none, or twice the output tokens.
    done
        End streams with [DONE].
    token_ids
        Send token ids in chunks.
    kinds
        Kinds of the first tokens of chats, as 20r5t2c: 20 of reasoning, 5 of text, 2 of a tool call; the rest are text.
    hidden_tokens
        Tokens of reasoning that usage counts and no chunk shows.
    fault
        NAME=SHARE, repeatable: inject a fault into this fraction of requests. Names: http_429, http_500, http_503,
        reset, truncated, stall, error_event, no_finish.
    stall
        AT:LENGTH in seconds, repeatable: write nothing for LENGTH, starting AT seconds after the first request.
    restart
        AT:DOWN in seconds: AT seconds after the first request, reset all connections and stop listening for DOWN.
    core
        CORE or REPLICA=CORE, repeatable: pin the server to this core, at real-time priority if allowed.
    log
        File to append the true times of each answer to, as JSON lines.
    """
    import asyncio

    import msgspec

    from bakeoff.harness.errors import BadSchedule
    from bakeoff.harness.truth import Schedule

    schedule = Schedule(
        ttft_s=ttft_ms / 1e3,
        itl_s=itl_ms / 1e3,
        tokens_per_chunk=tokens_per_chunk,
        events_per_write=events_per_write,
        slots=slots,
        prompt_token_s=prompt_token_ms / 1e3,
        cache_block_tokens=cache_block_tokens,
        jitter=jitter,
        seed=seed,
        role_chunk=None if role_chunk == "none" else role_chunk,
        finish_chunk=finish_chunk,
        comments=comments,
        crlf=crlf,
        write_bytes=write_bytes,
        multibyte=multibyte,
        usage=usage,
        done=done,
        token_ids=token_ids,
        kinds=kinds,
        hidden_tokens=hidden_tokens,
        faults=dict(_share(value) for value in fault or ()),
        stalls=tuple(_span("stall", value) for value in stall or ()),
        restart=None if restart is None else _span("restart", restart),
    )
    if replicas is not None and replicas < 1:
        raise BadSchedule(f"--replicas must be at least 1, not {replicas}")
    count = replicas or 1
    schedules = [
        msgspec.structs.replace(schedule, cache_tokens=tokens).slowed(1.0 if factor is None else factor)
        for tokens, factor in zip(
            _each("cache-tokens", cache_tokens, count, int, "1=100000"),
            _each("slow", slow, count, float, "2=1.5"),
            strict=True,
        )
    ]
    cores = _each("core", core, count, int, "1=0")
    if replicas is None:
        _serve_here(schedules[0], port, host=host, model=model, core=cores[0], log=log)
    else:
        asyncio.run(_serve_replicas(schedules, port, host=host, model=model, cores=cores, log=log))
    return EXIT_OK


def _serve_here(schedule: "Schedule", port: int, *, host: str, model: str, core: int | None, log: Path | None) -> None:
    """Serve in this process until Ctrl-C or SIGTERM, even if the shell made background jobs ignore Ctrl-C."""
    from bakeoff.harness.truth import TruthServer
    from bakeoff.harness.truth.isolation import disable_gc, pin_to_core
    from bakeoff.harness.truth.process import Summary
    from bakeoff.results.files.jsonl import Appender

    with contextlib.ExitStack() as cleanup:
        on_end = None if log is None else cleanup.enter_context(Appender(log)).append
        server = TruthServer(schedule, port, host=host, model=model, keep=False, on_end=on_end)
        cleanup.callback(server.close)
        if core is not None:
            pin_to_core(core)

        def stop(_number: int, _frame: FrameType | None) -> None:
            server.stop()

        for number in _STOPPING:
            signal.signal(number, stop)
        disable_gc()
        _print(f"truth server at http://{host}:{server.port}; press Ctrl-C to stop")
        server.serve()
        server.close()
        _print(str(Summary(server.accepted, server.endings)))


async def _serve_replicas(
    schedules: "Sequence[Schedule]",
    port: int,
    *,
    host: str,
    model: str,
    cores: "Sequence[int | None]",
    log: Path | None,
) -> None:
    """Serve each schedule in a process of its own: a long prompt of one does not delay the answers of another."""
    import asyncio

    from bakeoff.harness.errors import TruthFailed
    from bakeoff.harness.truth import truth_process
    from bakeoff.results.files.jsonl import Appender

    stopped = asyncio.Event()
    for number in _STOPPING:
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with contextlib.AsyncExitStack() as stack:
        if log is not None:
            stack.enter_context(Appender(log))  # reports a file that cannot be written before anything starts
        servers = [
            await stack.enter_async_context(
                truth_process(
                    schedule, port + replica - 1 if port else 0, core=core, host=host, model=model, replica=replica,
                    keep=False, log=None if log is None else str(log),
                )
            )
            for replica, (schedule, core) in enumerate(zip(schedules, cores, strict=True), start=1)
        ]  # fmt: skip
        for replica, server in enumerate(servers, start=1):
            _print(f"replica {replica} at {server.url}")
        _print("press Ctrl-C to stop")
        ends = [asyncio.create_task(server.ended()) for server in servers]
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait([stopping, *ends], return_when=asyncio.FIRST_COMPLETED)
        for replica, end in enumerate(ends, start=1):
            if end.done():
                raise TruthFailed(f"replica {replica} has ended (exit code {end.result()})")
        for replica, server in enumerate(servers, start=1):
            _print(f"replica {replica}: {await server.stop()}")


def _each(
    option: str, values: "Sequence[str] | None", replicas: int, number: "Callable[[str], float]", example: str
) -> "list[Any]":
    """The value of each replica, None without one: ``1.5`` is that of all, ``2=1.5`` that of the second."""
    each: list[Any] = [None] * replicas
    for value in sorted(values or (), key=lambda value: "=" in value):  # those of all replicas first
        place, _, text = value.rpartition("=")
        try:
            first, last = (int(place), int(place)) if place else (1, replicas)
            each[first - 1 : last] = [number(text)] * (last - first + 1)
        except ValueError:
            raise _bad_value(option, value, f"a number, or one for a replica, such as --{option} {example}") from None
        if not 1 <= first <= last <= replicas:
            raise _bad_value(option, value, f"the number of a replica, 1 to {replicas}, before the =")
    return each


def _share(value: str) -> tuple[Any, float]:
    """Parse ``http_429=0.1``; the schedule checks the name."""
    name, _, share = value.partition("=")
    with contextlib.suppress(ValueError):
        return name, float(share)
    raise _bad_value("fault", value, "NAME=SHARE, such as --fault http_429=0.1")


def _span(option: str, value: str) -> tuple[float, float]:
    """Parse ``20:5``."""
    at_s, _, length_s = value.partition(":")
    with contextlib.suppress(ValueError):
        return float(at_s), float(length_s)
    raise _bad_value(option, value, f"two numbers of seconds, such as --{option} 20:5")


def _bad_value(option: str, value: str, expected: str) -> Exception:
    from bakeoff.harness.errors import BadSchedule

    return BadSchedule(f"--{option} {value} is not understood; expected {expected}")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


_PANELS = {
    "Server": "port host model core log",
    "Timing": "ttft_ms itl_ms tokens_per_chunk events_per_write slots prompt_token_ms jitter seed stall",
    "Replicas": "replicas slow cache_tokens cache_block_tokens restart",
    "Streams": "role_chunk finish_chunk comments crlf write_bytes multibyte usage done token_ids kinds hidden_tokens",
    "Faults": "fault",
}
COMMANDS = [Command("lab truth", in_panels(serve_truth, _PANELS))]
