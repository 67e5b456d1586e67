"""The command that serves answers on a known schedule."""

import contextlib
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import cyclopts

from harness.cli.options import EXIT_OK

if TYPE_CHECKING:
    from harness.truth import TruthServer

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
    fault: Annotated[list[str] | None, _Several] = None,
    stall: Annotated[list[str] | None, _Several] = None,
    restart: str | None = None,
    core: int | None = None,
    log: Path | None = None,
) -> int:
    """Serve answers on an exact schedule, to measure any client's own error.

    Runs until Ctrl-C.

    Parameters
    ----------
    port
        To listen on; 0 takes a free one.
    host
        Address to listen on.
    model
        The name in /v1/models.
    ttft_ms
        Delay of the first chunk.
    itl_ms
        Gap between two chunks.
    tokens_per_chunk
        Tokens in each chunk.
    events_per_write
        Chunks in each write; it is due when its last one is.
    slots
        Answers at a time; further requests wait in order. Without it all are answered at once.
    jitter
        Gaps as they are, or drawn from an exponential distribution with that mean.
    seed
        Of gaps and faults.
    role_chunk
        Chat: an empty chunk with the role, right before the first tokens or at arrival.
    finish_chunk
        The finish reason in an empty chunk of its own, or on the last tokens.
    comments
        Write a comment between two chunks.
    crlf
        End the lines of events in CRLF.
    write_bytes
        Send the body in pieces of at most so many bytes.
    multibyte
        Tokens of two, three and four bytes.
    usage
        Usage right, left out, or with twice the tokens.
    done
        End streams with [DONE].
    token_ids
        Send token ids with the chunks.
    fault
        NAME=SHARE, several times: http_429, http_500, http_503, reset, truncated, stall, error_event, no_finish.
    stall
        AT:LENGTH in seconds after the first request, several times: nothing is written inside.
    restart
        AT:DOWN in seconds after the first request: everything is reset, nothing listens for so long.
    core
        Stay on this core, at real-time priority where that is allowed.
    log
        File to which the true times of each answer are appended, one JSON line each.
    """
    from harness.truth import Schedule, TruthServer
    from harness.truth.isolation import pin_to_core
    from results.jsonl import Appender

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
        faults=dict(_share(words) for words in fault or ()),
        stalls=tuple(_span("stall", words) for words in stall or ()),
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
    """Serve until Ctrl-C or SIGTERM, also where a shell has told its background jobs to ignore the first."""
    from harness.truth.isolation import disable_gc

    def stop(_number: int, _frame: FrameType | None) -> None:
        server.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    disable_gc()
    _say(f"truth server at {url}; Ctrl-C ends it")
    server.serve()
    server.close()
    ends = ", ".join(f"{count} {ending}" for ending, count in sorted(server.endings.items()))
    _say(f"{server.endings.total()} answers over {server.accepted} connections{': ' * bool(ends)}{ends}")


def _share(words: str) -> tuple[Any, float]:
    """``http_429=0.1``; whether there is such a fault, the schedule checks."""
    name, _, share = words.partition("=")
    with contextlib.suppress(ValueError):
        return name, float(share)
    raise _not_understood("fault", words, "NAME=SHARE, such as --fault http_429=0.1")


def _span(option: str, words: str) -> tuple[float, float]:
    """``20:5``."""
    at_s, _, length_s = words.partition(":")
    with contextlib.suppress(ValueError):
        return float(at_s), float(length_s)
    raise _not_understood(option, words, f"two numbers of seconds, such as --{option} 20:5")


def _not_understood(option: str, words: str, wanted: str) -> Exception:
    from harness.errors import BadSchedule

    return BadSchedule(f"--{option} {words} is not understood; give {wanted}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
