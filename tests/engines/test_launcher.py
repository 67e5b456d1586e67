"""The launcher with real processes: readiness, errors with their cause, and no leftovers."""

import asyncio
import itertools
import os
import socket
import sys
import time
from collections.abc import Coroutine
from pathlib import Path

import pytest
from aiohttp import web
from yarl import URL

from bakeoff.engines import Access, EngineError, Launch, attached, launched, memory, pick_port
from bakeoff.engines.errors import EngineDied, NotReady, OutOfMemory, PortInUse
from bakeoff.engines.secrets import conceal
from bakeoff.engines.tail import tail
from tests.engines.fakes.stage import Fake, running
from tests.engines.processes import Held, fake_engine, get, visit

SOON_S = 5.0
"""Longer than any step here on a busy machine, shorter than the grace periods that must not elapse."""


def failure(story: Coroutine[object, object, object]) -> EngineError:
    with pytest.raises(EngineError) as caught:
        asyncio.run(story)
    return caught.value


class TestReady:
    def test_it_is_yielded_once_it_answers_200_and_gone_afterwards(self, tmp_path: Path) -> None:
        launch = fake_engine(tmp_path, "slow", env={"BAKEOFF_MARK": "marked"})

        async def story() -> None:
            async with launched(launch, tmp_path / "log") as server:
                assert server.base_url == f"http://127.0.0.1:{launch.port}"
                assert server.pid is not None
                held = Held(server.pid)
                assert held.alive() == 1
                assert server.start_s is not None
                assert 0.1 < server.start_s < 20, "two refusals at a poll of 50 ms"
                assert (server.exit_status, server.ended.is_set(), server.died()) == (None, False, None)
                assert os.getpgid(server.pid) == os.getsid(server.pid) == server.pid, "a group of its own"
                assert server.log_tail() == ["loading marked 1"]
            with held:
                assert held.alive() == 0, "when the block is left, it is gone already"
            assert server.exit_status is None, "an end that was asked for is no death"

        asyncio.run(story())

    def test_another_readiness_path_counts_where_the_launch_says_so(self, tmp_path: Path) -> None:
        error = failure(visit(fake_engine(tmp_path, ready_path="/v2/health", ready_timeout_s=0.5), tmp_path / "log"))
        assert isinstance(error, NotReady)
        assert "/v2/health did not answer 200 within 0.5 s (last: HTTP 404)" in str(error)

    def test_an_engine_that_never_gets_ready_leaves_its_last_lines(self, tmp_path: Path) -> None:
        launch = fake_engine(tmp_path, "never-ready", ready_timeout_s=0.5)
        error = failure(visit(launch, tmp_path / "log"))
        assert isinstance(error, NotReady)
        assert str(error) == (
            f"http://127.0.0.1:{launch.port}/health did not answer 200 within 0.5 s (last: HTTP 503); "
            f"see {tmp_path / 'log'}"
        )
        assert error.log_tail == ("loading None 1",)
        assert (tmp_path / "signals").read_text() == "SIGINT\n", "it was stopped in good order"

    def test_a_last_request_that_is_cut_short_does_not_hide_the_answer_before_it(self, tmp_path: Path) -> None:
        class Hanging(Fake):
            def routes(self) -> list[web.RouteDef]:
                loading = iter([web.Response(status=503)])

                async def health(_: web.Request) -> web.Response:
                    if answer := next(loading, None):
                        return answer
                    await asyncio.sleep(60)
                    raise AssertionError("nobody waits that long")

                return [web.get("/health", health)]

        async def story() -> None:
            async with running(Hanging()) as url:
                port = URL(url).port
                assert port is not None
                await visit(Launch(("sleep", "60"), port, ready_timeout_s=0.5), tmp_path / "log")

        assert "within 0.5 s (last: HTTP 503)" in str(failure(story()))

    def test_an_engine_that_never_listens_is_told_apart(self, tmp_path: Path) -> None:
        launch = fake_engine(tmp_path, ready_timeout_s=0.3)
        error = failure(visit(Launch((*launch.argv[:3], "0", *launch.argv[4:]), launch.port, ready_timeout_s=0.3),
                              tmp_path / "log"))  # fmt: skip
        assert isinstance(error, NotReady)
        assert "(last: ClientConnectorError)" in str(error)

    @pytest.mark.parametrize(("served", "message"), [("serves=other", "it serves other,"), ("", "it serves no model,")])
    def test_a_stranger_on_its_port_is_not_measured(self, tmp_path: Path, served: str, message: str) -> None:
        """On another host a server that was there before answers at once, the engine itself only after a minute."""
        error = failure(visit(fake_engine(tmp_path, served, listed_model="smol"), tmp_path / "log"))
        assert isinstance(error, NotReady)
        assert f"another server answers in place of the engine: {message} not smol; start again" in str(error)

    def test_the_engine_itself_is_known_by_its_models_name(self, tmp_path: Path) -> None:
        asyncio.run(visit(fake_engine(tmp_path, "serves=smol", listed_model="smol"), tmp_path / "log"))

    def test_a_server_that_accepts_but_never_answers_does_not_stretch_the_timeout(self, tmp_path: Path) -> None:
        started = time.monotonic()
        error = failure(visit(fake_engine(tmp_path, "hang", ready_timeout_s=0.5), tmp_path / "log"))
        assert time.monotonic() - started < 4.0
        assert "did not answer 200 within 0.5 s" in str(error)

    def test_the_log_of_a_second_launch_follows_the_first(self, tmp_path: Path) -> None:
        for _ in range(2):
            server = asyncio.run(visit(fake_engine(tmp_path), tmp_path / "log"))
        assert server.log_tail() == ["loading None 1", "bye"] * 2
        assert server.log_tail(lines=1) == ["bye"]


class TestDeath:
    @pytest.mark.parametrize(
        ("behaviour", "status", "last"),
        [
            ("exit=3", "exit status 3", "no such model"),
            ("exit=0", "exit status 0", "no such model"),
            ("exit=255", "exit status 255", "no such model"),
            ("signal=11", "signal 11", "loading None 1"),
            ("signal=9", "signal 9", "loading None 1"),
        ],
    )
    def test_ending_before_ready_tells_status_and_last_words(
        self, tmp_path: Path, behaviour: str, status: str, last: str
    ) -> None:
        error = failure(visit(fake_engine(tmp_path, behaviour), tmp_path / "log"))
        assert isinstance(error, EngineDied)
        assert f"({status})" in str(error)
        assert last in str(error)
        assert error.log_tail[-1] == last

    def test_ending_before_ready_without_a_word_points_to_the_log(self, tmp_path: Path) -> None:
        error = failure(visit(Launch(("false",), pick_port()), tmp_path / "log"))
        assert isinstance(error, EngineDied)
        assert str(error).endswith(f"did not start (exit status 1): no output in {tmp_path / 'log'}")
        assert error.log_tail == ()

    @pytest.mark.parametrize(
        ("path", "status", "text", "last"),
        [("/die", 137, "signal 9", "loading None 1"), ("/exit", 5, "exit status 5", "assertion failed")],
    )
    def test_dying_while_it_runs_is_noticed_at_once(
        self, tmp_path: Path, path: str, status: int, text: str, last: str
    ) -> None:
        async def story() -> None:
            async with launched(fake_engine(tmp_path), tmp_path / "log") as server:
                await get(server, path)
                await asyncio.wait_for(server.ended.wait(), SOON_S)
                assert server.exit_status == status
                died = server.died()
                assert isinstance(died, EngineDied)
                assert str(died) == f"the engine's process ended by itself ({text})"
                assert died.log_tail[-1] == last

        asyncio.run(story())

    def test_a_daemon_of_an_engine_that_died_by_itself_dies_too(self, tmp_path: Path) -> None:
        async def story() -> None:
            async with launched(fake_engine(tmp_path, "orphan"), tmp_path / "log") as server:
                with Held(int((tmp_path / "orphan").read_text())) as held:
                    assert held.alive() == 1
                    await get(server, "/die")
                    await asyncio.wait_for(server.ended.wait(), SOON_S)
                    assert held.gone_within(SOON_S)

        asyncio.run(story())

    def test_one_that_ran_out_of_memory_is_told_what_to_lower(self, tmp_path: Path) -> None:
        error = failure(visit(fake_engine(tmp_path, "starve"), tmp_path / "log"))
        assert isinstance(error, OutOfMemory)
        assert str(error) == (
            "the engine ran out of memory (exit status 1): MemoryError; "
            "lower memory_fraction, max_model_len or max_num_seqs, or take a smaller model"
        )
        assert error.log_tail[-1] == "MemoryError"

    def test_running_out_of_memory_later_is_reported_too(self, tmp_path: Path) -> None:
        async def story() -> None:
            async with launched(fake_engine(tmp_path), tmp_path / "log") as server:
                await get(server, "/starve")
                await asyncio.wait_for(server.ended.wait(), SOON_S)
                assert isinstance(server.died(), OutOfMemory)

        asyncio.run(story())

    def test_one_that_the_kernel_killed_for_its_memory_is_told_apart(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The kernel's counter is fake: it rises between start and end."""
        counts = itertools.count()
        monkeypatch.setattr(memory, "kernel_kills", lambda: next(counts))

        async def story() -> None:
            async with launched(fake_engine(tmp_path), tmp_path / "log") as server:
                await get(server, "/die")
                await asyncio.wait_for(server.ended.wait(), SOON_S)
                assert str(server.died()).startswith("the engine ran out of memory (signal 9): killed by the kernel; ")

        asyncio.run(story())

    def test_a_program_that_does_not_exist_is_one_clear_error(self, tmp_path: Path) -> None:
        error = failure(visit(Launch(("/nowhere/vllm", "serve"), pick_port()), tmp_path / "log"))
        assert isinstance(error, EngineDied)
        assert str(error) == f"cannot start /nowhere/vllm; is it installed? See {tmp_path / 'log'}"
        assert error.log_tail == ("cannot start /nowhere/vllm: No such file or directory",)


class TestFiles:
    def test_configuration_is_written_beside_the_log_and_named_by_its_path(self, tmp_path: Path) -> None:
        words = ("print={file:extra.yml}", "exit=3", "{file:extra.yml}:{file:other.yml}:ro")
        launch = fake_engine(tmp_path, *words, files={"extra.yml": "max_batch_size: 8", "other.yml": ""})
        error = failure(visit(launch, tmp_path / "engine.log"))
        assert "max_batch_size: 8" in error.log_tail
        assert (tmp_path / "engine-other.yml").exists()

    def test_what_it_printed_of_its_secrets_is_taken_out_of_its_log(self, tmp_path: Path) -> None:
        (tmp_path / "config").write_text("token=hf-sentinel-1482 of hf-sentinel-1482")
        launch = fake_engine(tmp_path, f"print={tmp_path / 'config'}", env={"HF_TOKEN": "hf-sentinel-1482"})

        async def story() -> None:
            async with asyncio.timeout(SOON_S), launched(launch, tmp_path / "log"):
                while "token=" not in (log := (tmp_path / "log").read_text()):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
                assert log == "loading None 1\ntoken=••• of •••\n", "while it runs too"

        asyncio.run(story())
        assert (tmp_path / "log").read_text() == "loading None 1\ntoken=••• of •••\nbye\n"

    def test_so_is_the_key_that_requests_carry(self, tmp_path: Path) -> None:
        conceal("Bearer sk-sentinel-2207")
        (tmp_path / "config").write_text("asked with Bearer sk-sentinel-2207")
        launch = fake_engine(tmp_path, f"print={tmp_path / 'config'}")
        asyncio.run(visit(launch, tmp_path / "log", Access({"authorization": "Bearer sk-sentinel-2207"})))
        assert "asked with •••\n" in (tmp_path / "log").read_text()

    def test_it_inherits_no_secret_that_it_was_not_given(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OMP_NUM_THREADS", "VLLM_API_KEY"):
            monkeypatch.setenv(name, f"of-{name}")
        code = "import os; print(*(n for n in os.environ if 'of-' in os.environ[n])); raise SystemExit(3)"
        launch = Launch((sys.executable, "-S", "-c", code), pick_port(), {"VLLM_API_KEY": "of-the-file"})
        (names,) = failure(visit(launch, tmp_path / "log")).log_tail
        assert set(names.split()) == {"OMP_NUM_THREADS", "VLLM_API_KEY"}

    def test_one_without_secrets_prints_into_its_log_itself(self, tmp_path: Path) -> None:
        """Then masking costs no time."""
        code = "import os; print(os.readlink('/proc/self/fd/1')); raise SystemExit(3)"
        error = failure(visit(Launch((sys.executable, "-S", "-c", code), pick_port()), tmp_path / "log"))
        assert error.log_tail == (str(tmp_path / "log"),)


class TestAttached:
    def test_somebody_elses_server_is_neither_watched_nor_stopped(self) -> None:
        server = attached("http://127.0.0.1:8000")
        assert server.base_url == "http://127.0.0.1:8000"
        assert (server.pid, server.start_s, server.exit_status, server.died()) == (None, None, None, None)
        assert server.log_tail() == []


class TestTail:
    def test_the_last_lines_with_undecodable_bytes_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "log").write_bytes(b"one\ntwo\xff\n\nfour")
        assert tail(tmp_path / "log", 3) == ["two\ufffd", "", "four"]
        assert tail(tmp_path / "log", 99) == ["one", "two\ufffd", "", "four"]

    def test_no_file_has_no_lines(self, tmp_path: Path) -> None:
        assert tail(tmp_path / "log", 3) == []


class TestPort:
    def test_a_free_port_is_found_and_a_wanted_one_kept(self) -> None:
        port = pick_port()
        assert 1024 < port < 65536
        assert pick_port(port) == port

    @pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
    def test_a_port_that_is_listened_on_is_refused(self, address: str) -> None:
        with socket.create_server((address, 0)) as busy:
            port = busy.getsockname()[1]
            with pytest.raises(PortInUse) as caught:
                pick_port(port)
        assert str(caught.value) == (
            f"port {port} cannot be used (Address already in use); choose another or leave it out"
        )

    def test_a_number_that_is_no_port_is_refused(self) -> None:
        with pytest.raises(PortInUse, match=r"^port 70000 cannot be used \(not in 0-65535\)"):
            pick_port(70000)
