"""The guard alone, and under a harness that is killed: no process survives."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from bakeoff.engines import guard
from tests.engines.processes import Held, fake_engine

GRACES_S = (0.3, 0.3)
SOON_S = 5.0

SENTINEL = "hf-sentinel-9041"
HARNESS = """
import asyncio, pathlib, sys
from bakeoff.engines import launched
from tests.engines.processes import fake_engine

async def main(folder, *behaviours):
    env = {"HF_TOKEN": sys.argv[2]} if sys.argv[2] else {}
    launch = fake_engine(folder, "orphan", *behaviours, stop_grace_s=(0.3, 0.3), env=env)
    async with launched(launch, folder / "log") as server:
        print(server.pid, (folder / "orphan").read_text(), flush=True)
        await asyncio.Event().wait()

asyncio.run(main(pathlib.Path(sys.argv[1]), *sys.argv[3:]))
"""


@contextmanager
def guarded(*argv: str) -> Iterator["subprocess.Popen[str]"]:
    """A guard with a program; its stdin stays open."""
    graces = [str(seconds) for seconds in GRACES_S]
    with subprocess.Popen(
        [sys.executable, "-I", guard.__file__, *graces, "--", *argv],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        yield process


def test_a_program_may_use_only_the_cores_that_it_is_given():
    core = min(os.sched_getaffinity(0))
    argv = [sys.executable, "-I", guard.__file__, "1", "1", guard.CORES_OPTION, str(core), "--"]
    code = "import os, sys; sys.exit(os.sched_getaffinity(0) != {int(sys.argv[1])})"
    with subprocess.Popen([*argv, *python(code), str(core)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.wait(20) == 0


@contextmanager
def harness(folder: Path, *behaviours: str, token: str = "") -> Iterator[tuple["subprocess.Popen[str]", Held]]:
    """A process that launched an engine with a daemon, and a hold on both of them."""
    with subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(folder), token, *behaviours],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            with Held(*(int(pid) for pid in process.stdout.readline().split())) as held:
                assert held.alive() == 2
                yield process, held
        finally:
            process.kill()


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code)


@pytest.mark.parametrize(
    ("code", "status"),
    [("pass", 0), ("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 15)", 128 + 15)],
)
def test_the_engines_exit_status_becomes_the_guards(code: str, status: int) -> None:
    with guarded(*python(code)) as process:
        assert process.wait(SOON_S) == status


def test_stdout_is_the_pid_alone_and_the_engines_output_goes_to_the_log() -> None:
    code = "import os, sys; print(os.getpid(), sys.stdin.read() == '')"
    with guarded(*python(code)) as process:
        assert process.wait(SOON_S) == 0
        assert process.stdout is not None
        assert process.stderr is not None
        pid = process.stdout.read()
        assert process.stderr.read() == f"{int(pid)} True\n"


def test_an_engine_gets_the_stop_even_if_the_harness_is_a_background_job() -> None:
    """The children of such a job ignore SIGINT from the start."""
    code = "import signal; print(*(signal.getsignal(n) for n in (signal.SIGINT, signal.SIGHUP)))"
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with guarded(*python(code)) as process:
            assert process.stderr is not None
            assert process.stderr.read() == "<built-in function default_int_handler> 0\n"
    finally:
        signal.signal(signal.SIGINT, ignored)


@pytest.mark.parametrize(("mode", "reason"), [(None, "No such file or directory"), (0o644, "Permission denied")])
def test_a_program_that_cannot_be_executed_has_its_reason_in_the_log(
    tmp_path: Path, mode: int | None, reason: str
) -> None:
    program = tmp_path / "engine"
    if mode is not None:
        program.touch(mode)
    with guarded(str(program)) as process:
        out, log = process.communicate(timeout=SOON_S)
    assert (process.returncode, out, log) == (guard.EXIT_CANNOT_START, "", f"cannot start {program}: {reason}\n")


def test_closing_stdin_asks_for_a_stop(tmp_path: Path) -> None:
    with guarded(*fake_engine(tmp_path, "ignore-SIGINT").argv) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        assert process.stderr.readline().startswith("loading"), "its handlers are in place"
        process.stdin.close()
        assert process.wait(SOON_S) == 0
    assert (tmp_path / "signals").read_text() == "SIGINT\nSIGTERM\n"


def test_a_guard_that_is_killed_takes_the_engine_along(tmp_path: Path) -> None:
    with guarded(*fake_engine(tmp_path).argv) as process:
        assert process.stdout is not None
        with Held(int(process.stdout.readline())) as held:
            process.kill()
            assert held.gone_within(SOON_S)


@pytest.mark.parametrize(
    "behaviours", [(), ("ignore-SIGINT",), ("ignore-SIGINT", "ignore-SIGTERM")], ids=["orderly", "slow", "deaf"]
)
def test_when_the_harness_is_killed_the_engine_and_its_daemon_follow_within_the_graces(
    tmp_path: Path, behaviours: tuple[str, ...]
) -> None:
    with harness(tmp_path, *behaviours) as (process, held):
        process.kill()
        assert held.gone_within(sum(GRACES_S) + 1.0)
        assert process.wait(SOON_S) == -signal.SIGKILL


def test_ctrl_c_reaches_the_engine_once_and_through_the_guard(tmp_path: Path) -> None:
    """The terminal signals the harness's whole group; the engine is in another group."""
    with harness(tmp_path) as (process, held):
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(SOON_S) != 0
        assert held.alive() == 0, "the harness ends after them"
    assert (tmp_path / "signals").read_text() == "SIGINT\n"


def test_no_secret_stays_in_the_log_when_the_harness_is_killed(tmp_path: Path) -> None:
    """Nothing can clean up after the harness was killed."""
    printed, folder = tmp_path / "told", tmp_path / "run"
    folder.mkdir()
    printed.write_text(f"token={SENTINEL} twice {SENTINEL}")
    with harness(folder, f"print={printed}", token=SENTINEL) as (process, held):
        (guards,) = (child for child in psutil.Process(process.pid).children())
        with Held(guards.pid) as guards_held:
            process.kill()
            assert held.gone_within(SOON_S)
            assert guards_held.gone_within(SOON_S)
    assert [path.name for path in folder.iterdir() if SENTINEL.encode() in path.read_bytes()] == []
    assert "token=••• twice •••\n" in (folder / "log").read_text(), "its last words are there"


class TestMaskedLog:
    """Output that passes through the guard, in pieces as the engine happens to print it."""

    def copied(self, monkeypatch: pytest.MonkeyPatch, *pieces: bytes) -> bytes:
        written: list[bytes] = []
        monkeypatch.setattr(guard, "_log", written.append)
        monkeypatch.setattr(guard, "_REST_S", 0)
        log = guard._MaskedLog(b"***\0secret-token\0secret")
        engine = os.dup(log.input)
        log.start()
        for piece in pieces:
            os.write(engine, piece)
        os.close(engine)
        log.join()
        assert not log._thread.is_alive()
        os.close(log._output)
        return b"".join(written)

    @pytest.mark.parametrize("cut", range(28))
    def test_a_secret_is_masked_wherever_the_output_is_cut(self, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
        output = b"a=secret-token b=secret\nend"
        assert self.copied(monkeypatch, output[:cut], output[cut:]) == b"a=*** b=***\nend"

    def test_a_line_without_an_end_is_written_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rng = random.Random(4)
        output = b"".join(rng.choice((b"x" * 5_000, b"secret-token")) for _ in range(100))
        pieces = [output[at : at + 7_001] for at in range(0, len(output), 7_001)]
        assert self.copied(monkeypatch, *pieces) == output.replace(b"secret-token", b"***")

    def test_a_full_disk_does_not_stop_the_engine(self) -> None:
        """The engine would block for ever on a full pipe."""
        code = "print('x' * 3_000_000); print('secret')"
        with Path("/dev/full").open("wb") as full:
            argv = [sys.executable, "-I", guard.__file__, "1", "1", guard.MASK_OPTION, "--", *python(code)]
            with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=full) as process:
                assert process.stdin is not None
                process.stdin.write(b"***\0secret\n")
                process.stdin.flush()
                assert process.wait(SOON_S) == 0

    def test_a_harness_that_is_gone_before_it_said_its_secrets_starts_nothing(self, tmp_path: Path) -> None:
        argv = [sys.executable, "-I", guard.__file__, "1", "1", guard.MASK_OPTION, "--", "touch", str(tmp_path / "ran")]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        assert (done.returncode, (tmp_path / "ran").exists()) == (guard.EXIT_CANNOT_START, False)
