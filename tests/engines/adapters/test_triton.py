"""Adapter of Triton: launch on a model repository, metrics and notes."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bakeoff.engines import Deployment, EngineSpec, Launch, Model, Setup, attached
from bakeoff.engines.adapters.triton import TritonEngine, TritonOptions
from bakeoff.engines.deployment import Container, Ssh
from bakeoff.engines.errors import BadOption, ModelNotFound, PortInUse
from bakeoff.engines.metrics import Prometheus
from bakeoff.engines.metrics.readers import reader_of
from tests.engines.fakes.stage import running
from tests.engines.fakes.triton import TritonFake, metrics_page

MODEL = Model("smol", "/models/smol")
PROGRAM = Deployment(program="/opt/tritonserver")
THERE = Deployment(url="http://127.0.0.1:8000")


def made(deployment: Deployment = THERE, spec: EngineSpec | None = None, **options: Any) -> TritonEngine:
    own = msgspec.convert(options, TritonOptions)
    return TritonEngine(Setup(MODEL, spec or EngineSpec(), own, deployment))


def launch(engine: TritonEngine) -> Launch:
    command = engine.launch(9000)
    assert command is not None
    return command


def port(engine: TritonEngine) -> int | None:
    assert isinstance(engine.metrics, Prometheus)
    return engine.metrics.port


class TestLaunch:
    def test_a_named_program_is_started_on_the_repository(self, tmp_path: Path) -> None:
        engine = made(PROGRAM, model_repository=str(tmp_path))
        command = launch(engine)
        assert command.argv == (
            "/opt/tritonserver", "--model-repository", str(tmp_path), "--http-address", "127.0.0.1",
            "--http-port", "9000", "--metrics-port", str(port(engine)), "--allow-grpc", "false",
        )  # fmt: skip
        assert command.ready_path == "/v2/health/ready"
        assert port(engine) not in {None, 9000, 8002}, "a free one, which other servers here do not have"

    def test_a_wanted_port_of_metrics_is_used_or_refused(self, tmp_path: Path) -> None:
        async def story() -> None:
            async with running(TritonFake()) as url:
                taken = int(url.rpartition(":")[2])
                with pytest.raises(PortInUse):
                    made(PROGRAM, model_repository=str(tmp_path), metrics_port=taken).launch(9000)
            engine = made(PROGRAM, model_repository=str(tmp_path), metrics_port=taken)
            assert launch(engine).argv[8] == str(taken)

        asyncio.run(story())

    def test_a_container_has_the_repository_and_its_usual_port_of_metrics(self, tmp_path: Path) -> None:
        container = Container("tritonserver:26.07", gpus="all")
        engine = made(Deployment(container=container), model_repository=str(tmp_path))
        argv = launch(engine).argv
        assert f"{tmp_path}:{tmp_path}:ro" in argv
        assert argv[argv.index(container.image) + 1 :] == (
            "tritonserver", "--model-repository", str(tmp_path), "--http-address", "0.0.0.0", "--http-port", "8000",
            "--metrics-port", "8002", "--allow-grpc", "false",
        )  # fmt: skip
        assert engine.metrics is None, "only the port of requests is published"
        assert port(made(Deployment(container=container), model_repository=str(tmp_path), metrics_port=8102)) == 8102

    def test_over_ssh_the_repository_is_that_hosts(self) -> None:
        for ssh, options in ((Ssh("gpu", model_path="/repo"), {}), (Ssh("gpu"), {"model_repository": "/repo"})):
            argv = launch(made(Deployment(ssh=ssh), **options)).argv
            port = argv[argv.index("-L") + 1].rpartition(":")[2]
            assert argv[-1].endswith(
                f"tritonserver --model-repository /repo --http-address 127.0.0.1 --http-port {port}"
                " --metrics-port 8002 --allow-grpc false"
            )

    def test_nothing_is_looked_for(self) -> None:
        with pytest.raises(BadOption) as caught:
            made(Deployment(), model_repository="/repo")
        wanted = "engine 'triton' needs a way to start; set program, container or ssh, or give url"
        assert str(caught.value) == wanted
        with pytest.raises(BadOption, match=r"starts on a model repository; set options\.model_repository"):
            made(PROGRAM)
        with pytest.raises(ModelNotFound, match=r"/no/repo is not a folder; set options\.model_repository"):
            made(PROGRAM, model_repository="/no/repo").launch(9000)

    def test_what_its_repository_says_it_cannot_be_told(self, tmp_path: Path) -> None:
        with pytest.raises(BadOption) as caught:
            made(PROGRAM, EngineSpec(max_num_seqs=8), model_repository=str(tmp_path))
        wanted = "max_num_seqs: the model repository sets it (max_batch_size); leave it out for this engine"
        assert str(caught.value) == f"engine 'triton' cannot be told {wanted}"
        assert set(TritonEngine.spellings) == set(EngineSpec.__struct_fields__)


class TestAddress:
    def test_requests_go_to_the_model_of_the_repository(self) -> None:
        assert made().model_id == "ensemble"
        assert made(fields="llm-api").model_id == "tensorrt_llm"
        assert made(model_name="tensorrt_llm_bls").model_id == "tensorrt_llm_bls"
        assert made(Deployment(url="http://x", served_model_name="own")).model_id == "own"

    def test_options_reach_the_dialect(self) -> None:
        assert made().dialect.exact_length
        assert not made(fields="llm-api").dialect.exact_length
        accumulating = made(model_name="tensorrt_llm_bls", cumulative=True).dialect.reader()
        pieces = [accumulating.events(b'{"text_output":"%b"}' % text) for text in (b" a", b" a b")]
        assert [event.text for (event,) in pieces] == [" a", " b"]  # type: ignore[union-attr]

    def test_its_page_is_at_the_usual_port_or_the_one_that_is_named(self) -> None:
        assert port(made()) == 8002
        assert port(made(metrics_port=9002)) == 9002

    def test_its_page_is_read_into_our_names(self) -> None:
        engine = made()
        assert engine.metrics is not None
        page = metrics_page(scheduled=3, waiting=2, fraction=0.25)
        frame = reader_of(engine.metrics).read(page.encode())
        assert frame == {"running": 3, "waiting": 2, "kv_usage_share": 0.25}

    def test_it_is_described_by_itself_and_its_model(self) -> None:
        async def ask() -> dict[str, Any]:
            async with running(TritonFake()) as url:
                assert not await made().reset_cache(attached(url)), "it has no call for that"
                return await made().describe(attached(url))

        config = {"name": "ensemble", "max_batch_size": 64}
        assert asyncio.run(ask()) == {"version": "2.62.0", "model_config": config}
        assert asyncio.run(made().describe(attached("http://127.0.0.1:9"))) == {}

    def test_notes_list_what_the_stream_lacks(self) -> None:
        notes = made().notes
        assert (
            "it tells neither counts nor ids of tokens: they are counted by the model's tokenizer, chunk by chunk"
            in notes
        )
        assert "its stream has no end mark: an answer whose connection was closed in order counts as whole" in notes
        assert any("no call empties its cache" in note for note in notes)
        assert "the length of its answers cannot be forced" in made(fields="llm-api").notes
        assert "the length of its answers cannot be forced" not in notes

    def test_other_fields_are_refused(self) -> None:
        with pytest.raises(msgspec.ValidationError):
            made(fields="openai")
