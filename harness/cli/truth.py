"""The command ``bakeoff truth``: a mock server with known timing."""

import contextlib
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import cyclopts

from bakeoff.harness.cli.options import EXIT_OK

if TYPE_CHECKING:
    from bakeoff.harness.truth import TruthServer

_Several = cyclopts.Parameter(negative="")


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
    core: int | None = None,
    log: Path | None = None,
) -> int:
    """Serve a mock LLM with exactly known timing, to measure any client's own error.

    Runs until Ctrl-C.

    Parameters
    ----------
    port
        Port to listen on; 0 picks a free one.
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
        Pin the server to this core, at real-time priority if allowed.
    log
        File to append the true times of each answer to, as JSON lines.
    """
    from bakeoff.harness.truth import Schedule, TruthServer
    from bakeoff.harness.truth.isolation import pin_to_core
    from bakeoff.results.files.jsonl import Appender

    schedule = Schedule(
        ttft_s=ttft_ms / 1e3,
        itl_s=itl_ms / 1e3,
        tokens_per_chunk=tokens_per_chunk,
        events_per_write=events_per_write,
        slots=slots,
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
    with contextlib.ExitStack() as cleanup:
        on_end = None if log is None else cleanup.enter_context(Appender(log)).append
        server = TruthServer(schedule, port, host=host, model=model, keep=False, on_end=on_end)
        cleanup.callback(server.close)
        if core is not None:
            pin_to_core(core)
        _until_interrupted(server, f"http://{host}:{server.port}")
    return EXIT_OK


def _until_interrupted(server: "TruthServer", url: str) -> None:
    """Serve until Ctrl-C or SIGTERM, even if the shell made background jobs ignore Ctrl-C."""
    from bakeoff.harness.truth.isolation import disable_gc

    def stop(_number: int, _frame: FrameType | None) -> None:
        server.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    disable_gc()
    _print(f"truth server at {url}; press Ctrl-C to stop")
    server.serve()
    server.close()
    ends = ", ".join(f"{count} {ending}" for ending, count in sorted(server.endings.items()))
    _print(f"{server.endings.total()} answers over {server.accepted} connections{': ' * bool(ends)}{ends}")


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
