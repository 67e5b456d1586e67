"""The base of server adapters: command lines on this machine, in containers and over ssh, and their ends.

Containers and remote hosts are fake (:mod:`tests.engines.elsewhere`); the guard, the launcher and the clients'
processes are real.
"""

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import psutil
import pytest

from bakeoff.engines import Deployment, EngineError, EngineSpec, Launch, Model, Setup, launched
from bakeoff.engines.deployment import Container, Ssh
from bakeoff.engines.dialects import Dialect, OpenAiDialect
from bakeoff.engines.errors import BadOption, EngineDied, ModelNotFound, NotInstalled
from bakeoff.engines.server_engine import ServerEngine
from bakeoff.engines.spec import Spellings, flag
from tests.engines.elsewhere import Elsewhere, elsewhere
from tests.engines.processes import Held, fake_engine, own_children

SOON_S = 10.0
SENTINEL = "hf-sentinel-7731"


class Options(msgspec.Struct, frozen=True):
    """Words for the fake engine."""

    words: tuple[str, ...] = ()
    model_suffix: str = ""


class Small(ServerEngine):
    """An adapter that overrides everything that a subclass may override."""

    adapter = "small"
    Options = Options
    spellings: ClassVar[Spellings] = {"max_num_seqs": flag("--seqs")}
    container_command = ("small-serve",)
    key_variable = "SMALL_API_KEY"
    stop_grace_s = (0.5, 0.5)

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:  # noqa: ARG003
        return OpenAiDialect()

    def command(self) -> tuple[str, ...]:
        return ("/opt/small/bin/small-serve", "--quiet")

    def arguments(self, host: str, port: int, model: str) -> tuple[str, ...]:
        return ("--host", host, "--port", str(port), "--model", model)


class Fake(Small):
    """The adapter of :data:`tests.engines.processes.FAKE_ENGINE`."""

    def arguments(self, host: str, port: int, model: str) -> tuple[str, ...]:
        return (str(port), model, *self.setup.options.words)

    def environ(self) -> dict[str, str]:
        return {}


def small(spec: EngineSpec = EngineSpec(), model: str | None = "/models/smol", **deployment: Any) -> Small:  # noqa: B008
    return Small(Setup(Model("smol", model), spec, Options(), Deployment(**deployment)))


def launch_of(engine: ServerEngine) -> Launch:
    launch = engine.launch(9000)
    assert launch is not None
    return launch


class TestHere:
    def test_the_command_line_is_command_flags_shared_settings_and_own_words(self) -> None:
        launch = launch_of(small(EngineSpec(max_num_seqs=8), args=["--own", "1"], env={"A": "b"}, ready_timeout_s=7))
        assert launch.argv == (
            "/opt/small/bin/small-serve", "--quiet", "--host", "127.0.0.1", "--port", "9000",
            "--model", "/models/smol", "--seqs", "8", "--own", "1",
        )  # fmt: skip
        assert launch.env == {"HF_HUB_OFFLINE": "1", "A": "b"}
        assert (launch.port, launch.ready_timeout_s, launch.cleanup, launch.elsewhere) == (9000, 7, (), False)

    def test_the_key_that_requests_carry_is_told_by_environment_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BAKEOFF_TEST_KEY", SENTINEL)
        engine = small(api_key_env="BAKEOFF_TEST_KEY")
        assert engine.access.headers == {"authorization": f"Bearer {SENTINEL}"}
        launch = launch_of(engine)
        assert launch.env["SMALL_API_KEY"] == SENTINEL
        assert not [word for word in launch.argv if SENTINEL in word]

    def test_what_it_inherits_is_given_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BAKEOFF_TEST_TOKEN", SENTINEL)
        assert launch_of(small(inherit=["BAKEOFF_TEST_TOKEN"])).env["BAKEOFF_TEST_TOKEN"] == SENTINEL
        inside = launch_of(small(inherit=["BAKEOFF_TEST_TOKEN"], container=Container("small:1.2"))).argv
        assert inside[inside.index("BAKEOFF_TEST_TOKEN") - 1] == "--env"
        assert SENTINEL not in " ".join(inside)
        monkeypatch.delenv("BAKEOFF_TEST_TOKEN")
        with pytest.raises(BadOption, match="the environment variable BAKEOFF_TEST_TOKEN is not set; export it or"):
            small(inherit=["BAKEOFF_TEST_TOKEN"])

    def test_an_address_has_nothing_to_launch_and_is_told_nothing(self) -> None:
        engine = small(EngineSpec(max_num_seqs=8, tensor_parallel_size=2), url="http://127.0.0.1:1/v1")
        assert (engine.url, engine.launch(9000), engine.setting.argv) == ("http://127.0.0.1:1", None, ())

    def test_what_it_cannot_be_told_is_refused_when_it_is_made(self) -> None:
        with pytest.raises(BadOption, match="engine 'small' cannot be told tensor_parallel_size"):
            small(EngineSpec(tensor_parallel_size=2))
        with pytest.raises(BadOption, match="engine 'small': an engine has only one of url and ssh"):
            small(url="http://x", ssh=Ssh("box"))

    def test_without_a_model_there_is_nothing_to_serve(self) -> None:
        with pytest.raises(ModelNotFound, match=r"engine 'small' needs a model's files; set path in \[model\]"):
            launch_of(small(model=None))

    def test_an_engine_that_reads_one_file_finds_it_in_the_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Small, "model_suffix", ".gguf")
        with pytest.raises(ModelNotFound, match=r"engine 'small' needs a \.gguf file, and .* has none"):
            launch_of(small(model=str(tmp_path)))
        (tmp_path / "b.gguf").touch()
        assert str(tmp_path / "b.gguf") in launch_of(small(model=str(tmp_path))).argv
        assert str(tmp_path / "a.gguf") in launch_of(small(model=str(tmp_path / "a.gguf"))).argv


class TestContainers:
    def made(self, runtime: str = "docker", **changes: Any) -> Launch:
        container = Container("small:1.2", runtime, **changes)
        return launch_of(small(EngineSpec(max_num_seqs=8), container=container, env={"HF_TOKEN": SENTINEL}))

    def test_the_words_of_docker_run(self) -> None:
        launch = self.made(gpus="0,1", args=["--cap-drop", "ALL"])
        name = launch.argv[launch.argv.index("--name") + 1]
        assert launch.argv == (
            "docker", "run", "--rm", "--init", "--name", name, "--publish", "127.0.0.1:9000:8000",
            "--volume", "/models/smol:/models/smol:ro", "--shm-size", "16g", "--gpus", '"device=0,1"',
            "--env", "HF_HUB_OFFLINE", "--env", "HF_TOKEN", "--cap-drop", "ALL", "small:1.2",
            "small-serve", "--host", "0.0.0.0", "--port", "8000", "--model", "/models/smol", "--seqs", "8",
        )  # fmt: skip
        assert launch.cleanup == ("docker", "rm", "--force", name)
        assert launch.env["HF_TOKEN"] == SENTINEL, "the client's own environment has the value"
        assert launch.elsewhere

    @pytest.mark.parametrize("asked", [["--ipc", "host"], ["--ipc=host"], ["--shm-size", "64g"]])
    def test_the_hosts_shared_memory_only_where_it_is_asked_for(self, asked: list[str]) -> None:
        assert not [word for word in self.made(gpus="all").argv if "ipc" in word]
        argv = self.made(args=asked).argv
        assert [word for word in argv if word.startswith(("--ipc", "--shm"))] == [asked[0]], "podman takes only one"

    def test_podman_names_gpus_by_its_own_scheme(self) -> None:
        argv = self.made("podman", gpus="0,1").argv
        at = argv.index("--device")
        assert argv[0] == "podman"
        assert argv[at : at + 4] == ("--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1")
        assert "nvidia.com/gpu=all" in self.made("podman", gpus="all").argv

    def test_all_gpus_or_none(self) -> None:
        argv = self.made(gpus="all").argv
        assert argv[argv.index("--gpus") + 1] == "all"
        assert "--gpus" not in self.made().argv

    def test_what_runs_inside_may_be_said_otherwise(self) -> None:
        argv = self.made(command=["python3", "-m", "small"]).argv
        assert argv[argv.index("small:1.2") + 1 :][:4] == ("python3", "-m", "small", "--host")
        argv = self.made(command=[]).argv
        assert argv[argv.index("small:1.2") + 1] == "--host", "the image's own entry point"

    def test_each_start_has_a_name_of_its_own(self) -> None:
        assert self.made().cleanup != self.made().cleanup

    def test_a_model_is_mounted_by_its_whole_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        argv = launch_of(small(model="smol", container=Container("small:1.2"))).argv
        assert f"{tmp_path}/smol:{tmp_path}/smol:ro" in argv
        assert argv[argv.index("--model") + 1] == f"{tmp_path}/smol"


class TestSsh:
    def test_the_words_of_ssh_and_of_the_other_host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        remote = Ssh("me@box", args=["-p", "2222"], model_path="/data/smol")
        monkeypatch.setattr(secrets, "choice", max)
        launch = launch_of(small(EngineSpec(max_num_seqs=8), ssh=remote, args=["--say", "it's here"]))
        assert launch.argv == (
            "ssh", "-tt", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=5",
            "-o", "ControlPath=none", "-L", "127.0.0.1:9000:127.0.0.1:32767", "-p", "2222", "--", "me@box",
            """env HF_HUB_OFFLINE=1 small-serve --quiet --host 127.0.0.1 --port 32767 --model /data/smol --seqs 8 \
--say 'it'"'"'s here'""",
        )  # fmt: skip
        assert (launch.cleanup, launch.elsewhere) == ((), True)

    def test_each_start_listens_on_another_port_and_must_serve_the_model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = small(ssh=Ssh("box"))
        assert len({launch_of(engine).argv for _ in range(20)}) > 1
        assert launch_of(engine).listed_model is None, "its server does not say"
        monkeypatch.setattr(Small, "lists_model", True)
        assert launch_of(engine).listed_model == "smol"
        assert launch_of(small()).listed_model is None, "here a port that is taken ends it"

    def test_the_program_there_may_be_named(self) -> None:
        command = launch_of(small(ssh=Ssh("box", command=["/opt/my venv/bin/small", "run"]))).argv[-1]
        assert command.startswith("env HF_HUB_OFFLINE=1 '/opt/my venv/bin/small' run --host")

    def test_a_program_that_is_unknown_here_must_be(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(_: Small) -> tuple[str, ...]:
            raise NotInstalled("small is not installed")

        monkeypatch.setattr(Small, "command", missing)
        with pytest.raises(NotInstalled, match=r"engine 'small': its program on that host is not known; set ssh\.comm"):
            launch_of(small(ssh=Ssh("box")))
        assert "own-serve --host" in launch_of(small(ssh=Ssh("box", command=["own-serve"]))).argv[-1]

    def test_no_secret_reaches_the_other_hosts_process_list(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(BadOption, match="env: a secret would show in the other host's process list; set it there"):
            small(ssh=Ssh("box"), env={"HF_TOKEN": SENTINEL})
        monkeypatch.setenv("BAKEOFF_TEST_KEY", SENTINEL)
        launch = launch_of(small(ssh=Ssh("box"), api_key_env="BAKEOFF_TEST_KEY"))
        assert not [word for word in launch.argv if SENTINEL in word]
        assert "SMALL_API_KEY" not in launch.env


@pytest.fixture
def other_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Elsewhere]:
    with elsewhere(tmp_path) as side:
        monkeypatch.setenv("PATH", f"{side.programs}:{os.environ['PATH']}")
        yield side


def fake(folder: Path, *words: str, **deployment: Any) -> Launch:
    """The fake engine in a container or on another host."""
    own = fake_engine(folder)
    engine = Fake(Setup(Model("m", str(folder)), EngineSpec(), Options(words), Deployment(**deployment)))
    launch = engine.launch(own.port)
    assert launch is not None
    return launch


def container(folder: Path, runtime: str = "docker") -> Container:
    return Container("image", runtime, command=[sys.executable, "-S", str(folder / "fake_engine.py")])


def remote(folder: Path) -> Ssh:
    return Ssh("box", command=[sys.executable, "-S", str(folder / "fake_engine.py")])


async def visit(launch: Launch, log: Path) -> None:
    async with launched(launch, log) as server:
        assert server.start_s is not None
        assert server.pid is None, "the client's memory and CPU time are not the engine's"


def command_lines() -> str:
    """The command lines of all processes of this machine."""
    words: list[str] = []
    for process in psutil.process_iter(["cmdline"]):
        words += process.info["cmdline"] or []
    return "\n".join(words)


HARNESS = """
import asyncio, pathlib, sys
from bakeoff.engines import launched
from tests.engines.test_server_engine import container, fake, remote

async def main(way, folder, *words):
    where = {"container": container(folder)} if way == "container" else {"ssh": remote(folder)}
    async with launched(fake(folder, *words, **where), folder / "log") as server:
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main(sys.argv[1], pathlib.Path(sys.argv[2]), *sys.argv[3:]))
"""


class TestLifeElsewhere:
    @pytest.mark.parametrize("runtime", ["docker", "podman"])
    def test_a_container_gets_ready_hears_the_stop_and_is_removed(
        self, tmp_path: Path, other_side: Elsewhere, runtime: str
    ) -> None:
        launch = fake(tmp_path, container=container(tmp_path, runtime), env={"BAKEOFF_MARK": SENTINEL})

        async def story() -> None:
            async with launched(launch, tmp_path / "log"):
                assert SENTINEL not in command_lines()
                assert "BAKEOFF_MARK" in command_lines()

        asyncio.run(story())
        run, removal = other_side.calls
        assert run[:2] == [runtime, "run"]
        assert removal == list(launch.cleanup)
        assert other_side.environments == [{"BAKEOFF_MARK": SENTINEL}], "nothing else of this machine's environment"
        assert (tmp_path / "signals").read_text() == "SIGINT\n"
        assert (tmp_path / "log").read_text() == f"loading {SENTINEL} None\nbye\n"

    def test_a_container_that_ignores_every_signal_is_removed_all_the_same(
        self, tmp_path: Path, other_side: Elsewhere
    ) -> None:
        launch = fake(tmp_path, "ignore-SIGINT", "ignore-SIGTERM", container=container(tmp_path))
        asyncio.run(visit(launch, tmp_path / "log"))
        assert (tmp_path / "signals").read_text() == "SIGINT\nSIGTERM\n"
        assert other_side.engines[0].wait(SOON_S) == -9
        assert other_side.calls[-1] == list(launch.cleanup)

    def test_the_end_of_a_container_is_the_end_of_the_engine(self, tmp_path: Path, other_side: Elsewhere) -> None:
        with pytest.raises(EngineDied, match=r"it did not start \(exit status 3\): no such model"):
            asyncio.run(visit(fake(tmp_path, "exit=3", container=container(tmp_path)), tmp_path / "log"))
        assert [call[1] for call in other_side.calls] == ["run", "rm"]

    @pytest.mark.parametrize("way", ["container", "ssh"])
    def test_a_client_that_is_not_installed_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        place = {"container": container(tmp_path)} if way == "container" else {"ssh": remote(tmp_path)}
        program = "docker" if way == "container" else "ssh"
        with pytest.raises(EngineDied, match=f"cannot start {program}; is it installed"):
            asyncio.run(visit(fake(tmp_path, **place), tmp_path / "log"))

    def test_over_ssh_it_gets_ready_and_hangs_up_with_the_connection(
        self, tmp_path: Path, other_side: Elsewhere
    ) -> None:
        launch = fake(tmp_path, ssh=remote(tmp_path), env={"BAKEOFF_MARK": 'it\'s "$HOME"'})
        asyncio.run(visit(launch, tmp_path / "log"))
        assert other_side.engines[0].wait(SOON_S) == -1, "SIGHUP, from the terminal there"
        assert 'loading it\'s "$HOME"' in (tmp_path / "log").read_text(), "the shell there changed nothing"

    @pytest.mark.parametrize("way", ["container", "ssh"])
    @pytest.mark.parametrize("words", [(), ("ignore-SIGINT", "ignore-SIGTERM")], ids=["orderly", "deaf"])
    def test_killing_the_harness_leaves_nothing_elsewhere(
        self, tmp_path: Path, other_side: Elsewhere, way: str, words: tuple[str, ...]
    ) -> None:
        argv = [sys.executable, "-c", HARNESS, way, str(tmp_path), *words]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as harness:
            assert harness.stdout is not None
            assert harness.stdout.readline() == "ready\n"
            (engine,) = other_side.engines
            assert engine.poll() is None
            harness.kill()
        engine.wait(SOON_S)

    def test_killing_the_guard_leaves_no_container(self, tmp_path: Path, other_side: Elsewhere) -> None:
        async def story() -> EngineError | None:
            async with launched(fake(tmp_path, container=container(tmp_path)), tmp_path / "log") as server:
                (guard,) = (child for child in own_children() if "guard.py" in " ".join(child.cmdline()))
                with Held(*(child.pid for child in guard.children())) as clients:
                    guard.kill()
                    await asyncio.wait_for(server.ended.wait(), SOON_S)
                    assert clients.gone_within(SOON_S)
                return server.died()

        died = asyncio.run(story())
        assert str(died) == "the engine's guard was killed by signal 9, and the engine with it"
        assert other_side.engines[0].poll() is not None, "when the block is left, it is gone already"
        assert [call[1] for call in other_side.calls] == ["run", "rm"]
