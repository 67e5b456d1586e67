"""Adapter of SGLang: command line against the server's parser, and requests outside the load."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from bakeoff.engines import Deployment, EngineSpec, Launch, Model, Server, Setup, Speculation, attached, check, engine
from bakeoff.engines.adapters.sglang import METRICS, SglangEngine, SglangOptions
from bakeoff.engines.deployment import Container, Ssh
from bakeoff.engines.dialects import SglangDialect, SglangNativeDialect
from bakeoff.engines.errors import BadOption, NotInstalled
from bakeoff.engines.metrics.readers import reader_of
from bakeoff.workloads import Turn
from tests.engines.fakes.sglang import FakeSglang
from tests.engines.fakes.sglang_flags import arguments
from tests.engines.fakes.stage import Script, running

MODEL = Model("smol", "/models/smol", "0" * 64)
WHERE = ("--model-path", "/models/smol", "--served-model-name", "smol", "--host", "127.0.0.1", "--port", "9000")
FIXED = ("--enable-metrics", "--enable-cache-report", "--sampling-defaults", "openai", "--log-level-http", "warning")
SPEC = {
    "dtype": ("bfloat16", ("--dtype", "bfloat16")),
    "quantization": ("fp8", ("--quantization", "fp8")),
    "kv_cache_dtype": ("fp8_e5m2", ("--kv-cache-dtype", "fp8_e5m2")),
    "max_model_len": (2048, ("--context-length", "2048")),
    "max_num_seqs": (64, ("--max-running-requests", "64")),
    "max_num_batched_tokens": (512, ("--chunked-prefill-size", "512")),
    "tensor_parallel_size": (2, ("--tp-size", "2")),
    "pipeline_parallel_size": (2, ("--pp-size", "2")),
    "enable_prefix_caching": (False, ("--disable-radix-cache",)),
    "enable_chunked_prefill": (False, ("--chunked-prefill-size", "-1")),
    "seed": (7, ("--random-seed", "7")),
    "memory_fraction": (0.5, ("--mem-fraction-static", "0.5")),
    "cpu_offload_gb": (4.0, ("--cpu-offload-gb", "4")),
    "speculation": (
        Speculation("ngram", 3), ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4"),
    ),
}  # fmt: skip
OPTIONS = {
    "api": ("native", ()),
    "page_size": (16, ("--page-size", "16")),
    "max_total_tokens": (9000, ("--max-total-tokens", "9000")),
    "max_prefill_tokens": (4096, ("--max-prefill-tokens", "4096")),
    "max_queued_requests": (8, ("--max-queued-requests", "8")),
    "schedule_policy": ("fcfs", ("--schedule-policy", "fcfs")),
    "schedule_conservativeness": (1.5, ("--schedule-conservativeness", "1.5")),
    "enable_mixed_chunk": (True, ("--enable-mixed-chunk",)),
    "disable_overlap_schedule": (True, ("--disable-overlap-schedule",)),
    "attention_backend": ("triton", ("--attention-backend", "triton")),
    "sampling_backend": ("pytorch", ("--sampling-backend", "pytorch")),
    "cuda_graph_backend_decode": ("disabled", ("--cuda-graph-backend-decode", "disabled")),
    "cuda_graph_backend_prefill": ("full", ("--cuda-graph-backend-prefill", "full")),
    "stream_interval": (4, ("--stream-interval", "4")),
    "incremental_streaming_output": (True, ("--incremental-streaming-output",)),
    "enable_deterministic_inference": (True, ("--enable-deterministic-inference",)),
    "device": ("cpu", ("--device", "cpu")),
}
HERE = Deployment(program="/opt/bin/sglang")


def made(deployment: Deployment = HERE, **settings: Any) -> SglangEngine:
    spec = {name: value for name, value in settings.items() if name in EngineSpec.__struct_fields__}
    own = {name: value for name, value in settings.items() if name not in spec}
    return SglangEngine(Setup(MODEL, EngineSpec(**spec), msgspec.convert(own, SglangOptions), deployment))


def launch(deployment: Deployment = HERE, **settings: Any) -> Launch:
    command = made(deployment, **settings).launch(9000)
    assert command is not None
    return command


def test_it_reports_metrics_and_cache_hits_and_samples_as_requested() -> None:
    """Bias 3: both are off by default; a note says that they cost something."""
    assert launch().argv == ("/opt/bin/sglang", "serve", *WHERE, *FIXED)
    assert any("both are off by default and cost a little" in note for note in made().notes)


def test_its_readiness_generates_no_tokens() -> None:
    """Bias 2: /health runs a generation each time and takes a second; 0.5.17 has no /ready."""
    command = launch()
    assert command.ready_path == "/health"
    assert command.env == {"HF_HUB_OFFLINE": "1", "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"}


@pytest.mark.parametrize(("name", "given"), [*SPEC.items(), *OPTIONS.items()])
def test_each_setting_is_one_flag_that_the_server_knows(name: str, given: tuple[Any, tuple[str, ...]]) -> None:
    value, flags = given
    argv = launch(**{name: value}).argv
    assert argv[2:] == (*WHERE, *FIXED, *flags)
    arguments().parse_args(argv[2:])


def test_all_settings_are_covered() -> None:
    assert set(SPEC) == set(EngineSpec.__struct_fields__) == set(SglangEngine.spellings)
    assert set(OPTIONS) == set(SglangOptions.__struct_fields__)


def test_what_it_does_anyhow_is_not_said() -> None:
    assert launch(enable_prefix_caching=True, enable_chunked_prefill=True).argv == launch().argv


@pytest.mark.parametrize(
    ("wanted", "flags"),
    [
        (Speculation("draft", 4, "/m/small"), ("STANDALONE", "--speculative-draft-model-path", "/m/small")),
        (Speculation("eagle3", 4, "/m/head"), ("EAGLE3", "--speculative-draft-model-path", "/m/head")),
        (Speculation("mtp", 4), ("NEXTN",)),
    ],
)
def test_speculation_is_a_chain_whose_width_counts_the_token_that_is_certain(
    wanted: Speculation, flags: tuple[str, ...]
) -> None:
    argv = launch(speculation=wanted).argv
    chain = ("--speculative-num-steps", "4", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "5")
    assert argv[argv.index("--speculative-algorithm") + 1 :] == (*flags, *chain)
    arguments().parse_args(argv[2:])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Speculation("suffix", 2), "it knows the methods ngram, mtp, draft, eagle, eagle3, not 'suffix'"),
        (Speculation("eagle3", 2), "eagle3 needs the folder of a draft model"),
    ],
)
def test_unsupported_settings_are_refused_before_any_lookup(spec: Speculation, message: str) -> None:
    with pytest.raises(BadOption, match="engine 'sglang' cannot be told speculation") as caught:
        check("sglang", {}, EngineSpec(speculation=spec), Deployment())
    assert message in str(caught.value)


@pytest.mark.parametrize(("api", "dialect"), [("openai", SglangDialect), ("native", SglangNativeDialect)])
def test_the_api_decides_the_dialect(api: str, dialect: type) -> None:
    assert type(made(api=api).dialect) is dialect


def test_an_api_that_it_does_not_have_is_named() -> None:
    with pytest.raises(BadOption, match="engine 'sglang': Invalid enum value 'grpc'"):
        check("sglang", {"api": "grpc"}, EngineSpec(), Deployment())


def test_a_reader_is_told_that_native_events_repeat_the_whole_answer() -> None:
    """Bias 1."""
    assert any("square of its length" in note for note in made(api="native").notes)
    assert not any("square" in note for note in made(api="native", incremental_streaming_output=True).notes)
    assert not any("square" in note for note in made().notes)


def test_a_reader_is_told_that_its_fraction_of_memory_is_of_something_else() -> None:
    """Bias 6."""
    assert any("weights and KV cache only" in note for note in made(memory_fraction=0.8).notes)
    assert not any("weights" in note for note in made().notes)


def test_without_an_environment_it_says_how_to_install_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NotInstalled, match="sglang is not installed; run: bakeoff engines install sglang"):
        launch(Deployment())


def test_in_a_container_the_whole_command_is_given() -> None:
    argv = launch(Deployment(container=Container("lmsysorg/sglang:v0.5.23", gpus="all"))).argv
    inside = argv[argv.index("lmsysorg/sglang:v0.5.23") + 1 :]
    assert inside[:4] == ("python3", "-m", "sglang.launch_server", "--model-path")


def test_over_ssh_the_program_is_looked_for_there() -> None:
    assert "python -m sglang.launch_server --model-path /models/smol" in launch(Deployment(ssh=Ssh("gpu"))).argv[-1]


def test_at_an_address_nothing_is_launched() -> None:
    attached_engine = engine(
        "sglang", Model("smol"), {"api": "native"}, EngineSpec(), Deployment(url="http://127.0.0.1:30000/v1")
    )
    assert attached_engine.launch(9000) is None


# Requests outside the load.


def ask(fake: FakeSglang, question: Any) -> Any:
    async def scene() -> Any:
        async with running(fake) as url:
            return await question(made(Deployment(url=url)), attached(url))

    return asyncio.run(scene())


def asking(server: Server, wanted: int) -> Any:
    request = SglangNativeDialect().request(Turn(3, wanted, prompt="one two three"), "smol")
    return aiohttp.request("POST", server.base_url + request.path, data=request.body, headers=request.headers)


def flags(*argv: str) -> Any:
    return arguments().parse_args(["--model-path", "/models/smol", *argv])


def test_it_is_described_by_what_identifies_it_and_no_more() -> None:
    fake = FakeSglang(flags=flags("--tp-size", "2", "--context-length", "2048", "--dtype", "bfloat16"))
    description = ask(fake, lambda sglang, server: sglang.describe(server))
    assert description["version"] == "0.5.23"
    assert (description["tp_size"], description["context_length"], description["dtype"]) == (2, 2048, "bfloat16")
    assert not {"launch_command", "internal_states", "host"} & set(description)
    settings = ask(fake, lambda sglang, _: asyncio.sleep(0, sglang.settings_in(description)))
    assert (settings["tensor_parallel_size"], settings["max_model_len"], settings["dtype"]) == (2, 2048, "bfloat16")
    assert settings["enable_prefix_caching"] is True


def test_its_prefix_cache_is_emptied() -> None:
    """Bias 4."""
    fake = FakeSglang()
    assert ask(fake, lambda sglang, server: sglang.reset_cache(server)) is True
    assert fake.flushes == 1


def test_it_waits_for_an_abandoned_request_before_the_cache_is_emptied() -> None:
    """Bias 5: a request whose client hung up runs on for seconds, during which the cache cannot be emptied."""
    fake = FakeSglang(Script(gap_s=0.02), ["slow-abort"])

    async def abandon(sglang: SglangEngine, server: Server) -> tuple[int, bool]:
        async with asking(server, 500) as reply:
            await reply.content.readany()
        return fake.running, await sglang.reset_cache(server)

    assert ask(fake, abandon) == (1, True)
    assert (fake.running, fake.flushes, fake.dropped) == (0, 1, 1)


@pytest.mark.parametrize("metrics", [True, False])
def test_its_metrics_are_where_the_adapter_says(metrics: bool) -> None:
    """Biases 3 and 7: without the flag there is no page; retractions count as preemptions."""
    fake = FakeSglang(Script(), ["retracts"], flags=flags(*["--enable-metrics"] * metrics))

    async def page(_: SglangEngine, server: Server) -> tuple[int, bytes]:
        async with asking(server, 5) as reply:
            await reply.read()
        status, body = await server.ask("GET", METRICS.path)
        return status, body

    status, text = ask(fake, page)
    assert status == (200 if metrics else 404)
    if metrics:
        frame = reader_of(METRICS).read(text)
        assert set(METRICS.values) <= set(frame)
        assert (frame["preemptions_total"], frame["prompt_tokens_total"], frame["output_tokens_total"]) == (1, 3, 5)
