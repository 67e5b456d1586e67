"""Servers that misbehave in thirty ways, through ``bakeoff run``: no hang, no traceback, no figure wrong and VALID.

An answer has 20 tokens, the first after 100 ms and each other 10 ms later; what a mode does instead stands beside it. A
run may take 15 s more than its ramp, window and start. Figures of VALID trials are compared with those of the mode.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from bakeoff import results
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.records import Verdict
from benchmarks.bars import Bars

TOKENS, TTFT_S, ITL_S = 20, 0.1, 0.01
TIMEOUT_S, EXPECTED_S, HANG_S = 4, 10.0, 15.0
TOLERANCE = 0.08
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
Events = AsyncIterator[bytes]
Writer = asyncio.StreamWriter


def event(data: object) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def delta(text: str = " a", **more: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, **more}]})


def usage(tokens: object) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": tokens}})


def end(tokens: object = TOKENS) -> bytes:
    return event(STOP) + usage(tokens) + event(b"[DONE]")


async def paced(chunk: Callable[[int], bytes] = lambda _: delta(), last: bytes | None = None) -> Events:
    for number in range(TOKENS):
        await asyncio.sleep(ITL_S if number else TTFT_S)
        yield chunk(number)
    yield end() if last is None else last


async def one_of(*pieces: bytes, wait_s: float = TTFT_S) -> Events:
    await asyncio.sleep(wait_s)
    for piece in pieces:
        yield piece


async def endless() -> Events:
    while True:
        await asyncio.sleep(ITL_S)
        yield delta()


async def silent_after_ten() -> Events:
    for number in range(10):
        await asyncio.sleep(ITL_S if number else TTFT_S)
        yield delta()
    await asyncio.sleep(600)


async def left_open() -> Events:
    async for piece in paced():
        yield piece
    await asyncio.sleep(600)


async def slow_bytes() -> Events:
    for byte in HEAD:
        yield bytes([byte])
        await asyncio.sleep(0.5)


async def turned_slow() -> Events:
    """Six times slower from six seconds after the first request on."""
    factor = SLOWER if time.monotonic() > BEGAN[0] + 6 else 1
    for number in range(TOKENS):
        await asyncio.sleep((ITL_S if number else TTFT_S) * factor)
        yield delta()
    yield end()


BEGAN = [float("inf")]
PLAIN, ANY, NO_TRUTH = 1, 0, None
SLOWER, SLOW_USERS = 6, 8
MODES: dict[str, tuple[Callable[[], Events], bytes, int | None]] = {
    # name: events, head, how many times slower than plain a VALID trial is, or any; None if no trial may be VALID
    "plain": (paced, HEAD, PLAIN),
    "ids_cumulative": (lambda: paced(lambda i: delta(token_ids=list(range(i + 1)))), HEAD, PLAIN),
    "ids_of_the_prompt": (lambda: paced(lambda i: delta(token_ids=[1] * (1000 if not i else 1))), HEAD, PLAIN),
    "thousand_ids": (lambda: paced(lambda _: delta(token_ids=[1] * 1000)), HEAD, PLAIN),
    "ids_without_text": (lambda: paced(lambda _: delta("", token_ids=[1] * 8), end(4)), HEAD, ANY),
    "usage_of_one": (lambda: paced(last=end(1)), HEAD, PLAIN),
    "usage_of_a_million": (lambda: paced(last=end(1_000_000)), HEAD, PLAIN),
    "usage_below_0": (lambda: paced(last=end(-5)), HEAD, PLAIN),
    "usage_as_text": (lambda: paced(last=end("many")), HEAD, PLAIN),
    "usage_without_bound": (lambda: paced(last=end(10**30)), HEAD, PLAIN),
    "tokens_behind_done": (lambda: paced(last=end() + delta() * 50), HEAD, PLAIN),
    "two_ends": (lambda: paced(last=end() + end()), HEAD, PLAIN),
    "left_open": (left_open, HEAD, PLAIN),
    "error_event": (lambda: paced(last=event({"error": {"message": "no"}})), HEAD, NO_TRUTH),
    "no_end": (lambda: paced(last=b""), HEAD, NO_TRUTH),
    "silence": (lambda: one_of(wait_s=600), b"", NO_TRUTH),
    "head_and_silence": (lambda: one_of(wait_s=600), HEAD, NO_TRUTH),
    "silent_after_ten": (silent_after_ten, HEAD, NO_TRUTH),
    "endless": (endless, HEAD, NO_TRUTH),
    "slow_bytes": (slow_bytes, b"", NO_TRUTH),
    "no_http": (lambda: one_of(b"\x00\xff garbage\r\n" * 9), b"", NO_TRUTH),
    "endless_headers": (lambda: one_of(*[b"x: " + b"y" * 9999 + b"\r\n"] * 2000), HEAD[:-2], NO_TRUTH),
    "wrong_chunk_size": (lambda: one_of(b"zz\r\nhello"), HEAD[:-2] + b"transfer-encoding: chunked\r\n\r\n", NO_TRUTH),
    "too_short": (lambda: one_of(delta()), HEAD[:-2] + b"content-length: 99999\r\n\r\n", NO_TRUTH),
    "no_content": (one_of, b"HTTP/1.1 204 No Content\r\n\r\n", NO_TRUTH),
    "redirect": (one_of, b"HTTP/1.1 302 Found\r\nlocation: /v1\r\ncontent-length: 0\r\n\r\n", NO_TRUTH),
    "continue_for_ever": (lambda: one_of(*[b"HTTP/1.1 100 Continue\r\n\r\n"] * 9999), b"", NO_TRUTH),
    "ten_megabytes": (lambda: one_of(delta("a " * 5_000_000), end()), HEAD, NO_TRUTH),
    "not_utf_8": (lambda: paced(lambda _: b'data: {"choices":[{"delta":{"content":" \xff"}}]}\n\n'), HEAD, PLAIN),
    "nan": (lambda: paced(lambda _: event(b'{"choices":[{"delta":{"content":" a"},"p":NaN}]}')), HEAD, PLAIN),
    "deep": (lambda: paced(lambda _: event(b'{"choices":' + b"[" * 90_000)), HEAD, NO_TRUTH),
    "turned_slow": (turned_slow, HEAD, SLOWER),
}


async def served(mode: str, reader: asyncio.StreamReader, writer: Writer) -> None:
    events, head, _ = MODES[mode]
    try:
        request = await reader.readuntil(b"\r\n\r\n")
        lines = [line.split(b":") for line in request.lower().split(b"\r\n")]
        await reader.readexactly(next((int(line[1]) for line in lines if line[0] == b"content-length"), 0))
        if request.startswith(b"GET"):
            body = b'{"data":[{"id":"m"}]}' if b"/models" in request else b"{}"
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        else:
            BEGAN[0] = min(BEGAN[0], time.monotonic())
            writer.write(head)
            async for piece in events():
                writer.write(piece)
                await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


def serve(mode: str, listener: socket.socket) -> None:
    async def main() -> None:
        server = await asyncio.start_server(lambda r, w: served(mode, r, w), sock=listener)
        await server.serve_forever()

    asyncio.run(main())


def measured(mode: str, folder: Path) -> tuple[float, str, results.Run | None]:
    """Seconds, output and run of ``bakeoff run`` against a server of this mode."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    experiment = folder / f"{mode}.toml"
    users, window_s = (SLOW_USERS, 12) if mode == "turned_slow" else (1, 3)
    experiment.write_text(
        f'name = "{mode}"\nrepeats = 1\nmodel = {{ name = "m", tokenizer = "approximate" }}\n'
        f'engines = [{{ adapter = "openai", url = "{url}" }}]\nloads = [{{ concurrency = {users} }}]\n'
        f'workload = {{ name = "random", options = {{ input_tokens = 8, output_tokens = {TOKENS} }} }}\n'
        f"trial = {{ ramp_s = 0.5, duration_s = {window_s}, timeout_s = {TIMEOUT_S}, "
        "max_foreign_share = 1.0, warm_up_s = 0.0 }\nclient = { calibrate = false }\n"
    )
    server = multiprocessing.get_context("fork").Process(target=serve, args=(mode, listener), daemon=True)
    server.start()
    argv = [sys.executable, "-m", "bakeoff", "run", str(experiment), "--out", str(folder / mode)]
    began = time.monotonic()
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90, check=False,
            env={**os.environ, "COLUMNS": "160"},
        )  # fmt: skip
        text = done.stdout
    except subprocess.TimeoutExpired as expired:
        text = f"did not end: {(expired.stdout or b'')[-300:]!r}"
    took_s = time.monotonic() - began
    server.kill()
    server.join()
    listener.close()
    runs = sorted((folder / mode).glob("*/run.jsonl"))
    return took_s, text, results.load(runs[-1].parent) if runs else None


def wrong_figures(run: results.Run | None, slower: int | None) -> list[str]:
    """Figures of VALID trials that are not the mode's."""
    if run is None:
        return []
    wrong = []
    for trial in run.finished:
        if trial.record.verdict is not Verdict.VALID:
            continue
        if slower is None:
            wrong.append("VALID")
        if not slower:
            continue
        truth = {"ttft_p50_s": TTFT_S * slower, "itl_p50_s": ITL_S * slower, "tpot_p50_s": ITL_S * slower}
        if all(finding.code is not FindingCode.LEFT_OPEN for finding in trial.record.findings):
            users = trial.record.load.concurrency or 1
            truth["output_tokens_per_s"] = users * TOKENS / slower / (TTFT_S + (TOKENS - 1) * ITL_S)
        for name, right in truth.items():
            found = trial.metrics[name].value
            if found is not None and abs(found / right - 1) > TOLERANCE:
                wrong.append(f"{name} {found:.4g} instead of {right:.4g}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(MODES), help="modes")
    options = parser.parse_args()
    hung, crashed, wrong = 0, 0, 0
    with tempfile.TemporaryDirectory() as name:
        for mode in options.only:
            took_s, text, run = measured(mode, Path(name))
            off = wrong_figures(run, MODES[mode][2])
            is_hung, is_crash = (
                took_s > (4 if mode == "turned_slow" else 1) * EXPECTED_S + HANG_S,
                "Traceback" in text or "unexpected error" in text,
            )
            hung, crashed, wrong = hung + is_hung, crashed + is_crash, wrong + bool(off)
            verdicts = ", ".join(trial.record.verdict.value for trial in run.finished) if run else "no run"
            print(f"{mode:<20} {took_s:5.1f} s  {verdicts:<8} {'HUNG' * is_hung} {'; '.join(off)}", flush=True)
            if is_crash or run is None:
                print(text[-600:])
    bars = Bars()
    for bar, count in (("hung", hung), ("crashed", crashed), ("wrong_and_valid", wrong)):
        bars.add(bar, count, "<=", 0)
    bars.finish()


if __name__ == "__main__":
    main()
