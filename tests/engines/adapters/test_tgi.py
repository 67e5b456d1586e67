"""Adapter of TGI: command line against the launcher's flags, deployment and description."""

import asyncio
import shutil
from typing import Any

import msgspec
import pytest

from bakeoff.engines import Deployment, EngineSpec, Launch, Model, Server, Setup, Speculation, attached
from bakeoff.engines.adapters.tgi import TgiEngine, TgiOptions
from bakeoff.engines.deployment import Container, Ssh
from bakeoff.engines.dialects import TgiDialect, TgiNativeDialect
from bakeoff.engines.errors import BadOption, ModelNotFound, NotInstalled
from bakeoff.engines.metrics import Prometheus
from tests.engines.fakes.stage import Script, running
from tests.engines.fakes.tgi import FakeTgi
from tests.engines.fakes.tgi_flags import arguments
from tests.engines.schema import load_spec, problems

MODEL = Model("smol", "/models/smol", "0" * 64)
LAUNCHER = Deployment(program="/opt/tgi/text-generation-launcher")
WHERE = ("--model-id", "/models/smol", "--hostname", "127.0.0.1", "--port", "9000", "--usage-stats", "off")
SPECS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "dtype": ("bfloat16", ("--dtype", "bfloat16")),
    "quantization": ("compressed-tensors", ("--quantize", "compressed-tensors")),
    "kv_cache_dtype": ("fp8", ("--kv-cache-dtype", "fp8_e4m3fn")),
    "max_model_len": (2048, ("--max-input-tokens", "2047", "--max-total-tokens", "2048")),
    "max_num_seqs": (8, ("--max-batch-size", "8")),
    "max_num_batched_tokens": (4096, ("--max-batch-prefill-tokens", "4096")),
    "tensor_parallel_size": (2, ("--num-shard", "2")),
    "pipeline_parallel_size": (1, ()),
    "speculation": (Speculation("ngram", 3), ("--speculate", "3")),
    "memory_fraction": (0.5, ("--cuda-memory-fraction", "0.5")),
}
OPTIONS = {
    "max_concurrent_requests": 512,
    "max_input_tokens": 1000,
    "max_batch_total_tokens": 32000,
    "waiting_served_ratio": 1.2,
    "max_waiting_tokens": 7,
    "cuda_graphs": "1,2,4",
    "validation_workers": 4,
}


def made(spec: EngineSpec = EngineSpec(), deployment: Deployment = LAUNCHER, **options: Any) -> TgiEngine:  # noqa: B008
    return TgiEngine(Setup(MODEL, spec, msgspec.convert(options, TgiOptions), deployment))


def launch(**asked: Any) -> Launch:
    command = made(**asked).launch(9000)
    assert command is not None
    return command


def own(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The flags without those that are always set, and without the metrics port, which is any free one."""
    assert argv[1 : 1 + len(WHERE)] == WHERE
    rest = list(argv[1 + len(WHERE) :])
    at = rest.index("--prometheus-port")
    assert int(rest[at + 1]) not in {0, 9000}
    return tuple(rest[:at] + rest[at + 2 :])


class TestCommandLine:
    def test_without_settings_only_necessary_flags_are_set_and_no_usage_statistics_are_sent(self) -> None:
        command = launch()
        assert command.argv[0] == "/opt/tgi/text-generation-launcher"
        assert own(command.argv) == ()
        assert (command.port, command.ready_path) == (9000, "/health")
        assert command.env == {"HF_HUB_OFFLINE": "1"}

    @pytest.mark.parametrize(("name", "value", "flags"), [(name, *rest) for name, rest in SPECS.items()])
    def test_each_shared_setting_in_its_own_words(self, name: str, value: Any, flags: tuple[str, ...]) -> None:
        assert own(launch(spec=EngineSpec(**{name: value})).argv) == flags

    @pytest.mark.parametrize(("name", "value"), OPTIONS.items())
    def test_each_option_is_the_flag_of_its_name(self, name: str, value: Any) -> None:
        assert own(launch(**{name: value}).argv) == (f"--{name.replace('_', '-')}", str(value))

    def test_all_of_it_is_known_to_the_launcher(self) -> None:
        spec = {name: value for name, (value, _) in SPECS.items() if name != "dtype"}
        command = launch(spec=EngineSpec(**spec), **OPTIONS)
        parsed = vars(arguments().parse_args(command.argv[1:]))
        assert {name: parsed[name] for name in OPTIONS} == OPTIONS
        assert (parsed["max_total_tokens"], parsed["num_shard"], parsed["usage_stats"]) == (2048, 2, "off")
        assert set(OPTIONS) == set(TgiOptions.__struct_fields__) - {"api", "attention"}

    @pytest.mark.parametrize(
        ("spec", "env"),
        [
            (EngineSpec(enable_prefix_caching=False), {"PREFIX_CACHING": "0"}),
            (EngineSpec(enable_prefix_caching=True), {"PREFIX_CACHING": "1"}),
            (EngineSpec(enable_chunked_prefill=True), {"PREFILL_CHUNKING": "1"}),
            (EngineSpec(enable_chunked_prefill=False), {"PREFILL_CHUNKING": "0"}),
        ],
    )
    def test_what_it_has_no_flag_for_goes_by_the_environment(self, spec: EngineSpec, env: dict[str, str]) -> None:
        command = launch(spec=spec)
        assert command.env == {"HF_HUB_OFFLINE": "1", **env}
        assert own(command.argv) == ()

    def test_the_kernels_of_attention_too(self) -> None:
        assert launch(attention="paged").env["ATTENTION"] == "paged"

    @pytest.mark.parametrize(
        ("value", "flags"),
        [
            ({"dtype": "auto"}, ()),
            ({"kv_cache_dtype": "auto"}, ()),
            ({"kv_cache_dtype": "fp8_e5m2"}, ("--kv-cache-dtype", "fp8_e5m2")),
            ({"quantization": "awq", "dtype": "auto"}, ("--quantize", "awq")),
            ({"speculation": Speculation("medusa", 2)}, ("--speculate", "2")),
        ],
    )
    def test_other_values(self, value: dict[str, Any], flags: tuple[str, ...]) -> None:
        assert own(launch(spec=EngineSpec(**value)).argv) == flags

    @pytest.mark.parametrize(
        ("spec", "reason"),
        [
            ({"dtype": "float32"}, "dtype: it knows float16, bfloat16, not 'float32'"),
            ({"kv_cache_dtype": "q8_0"}, "kv_cache_dtype: it knows auto, fp8, "),
            ({"quantization": "q4_0"}, "quantization: it knows awq, "),
            ({"max_model_len": 1}, "max_model_len: a prompt and its answer need 2"),
            ({"pipeline_parallel_size": 2}, "pipeline_parallel_size: it has tensor parallelism only"),
            ({"seed": 1}, "seed: it has seeds per request only"),
            ({"speculation": Speculation("draft", 3, "/m")}, "speculation: it knows ngram, and medusa"),
            ({"speculation": Speculation("ngram", 3, "/m")}, "speculation: it takes no second model"),
        ],
    )
    def test_unsupported_settings_are_refused_in_one_line(self, spec: dict[str, Any], reason: str) -> None:
        with pytest.raises(BadOption) as caught:
            made(EngineSpec(**spec))
        assert str(caught.value).startswith(f"engine 'tgi' cannot be told {reason}")

    def test_a_quantised_model_chooses_its_own_type(self) -> None:
        with pytest.raises(BadOption, match="engine 'tgi' takes dtype or quantization, not both; leave one out"):
            made(EngineSpec(dtype="float16", quantization="awq"))

    def test_a_shorter_longest_prompt_of_its_own_stands_above_the_shared_length(self) -> None:
        argv = own(launch(spec=EngineSpec(max_model_len=2048), max_input_tokens=100).argv)
        assert argv == ("--max-input-tokens", "100", "--max-total-tokens", "2048")


class TestPlaces:
    def test_it_is_looked_for_on_the_path(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/local/bin/{name}")
        assert launch(deployment=Deployment()).argv[0] == "/usr/local/bin/text-generation-launcher"

    def test_where_it_is_not_the_ways_out_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "which", lambda name: None)
        with pytest.raises(NotInstalled, match="not on PATH, and no package has it; use a container, or give its url"):
            launch(deployment=Deployment())

    def test_a_containers_entry_point_is_the_launcher(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "which", lambda name: None)
        image = Container("ghcr.io/huggingface/text-generation-inference:3.3.6", gpus="all")
        argv = launch(deployment=Deployment(container=image)).argv
        inside = argv[argv.index(image.image) + 1 :]
        assert inside[:6] == ("--model-id", "/models/smol", "--hostname", "0.0.0.0", "--port", "8000")
        assert "--prometheus-port" not in inside

    def test_on_another_host_it_is_looked_for_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "which", lambda name: None)
        argv = launch(deployment=Deployment(ssh=Ssh("gpu1"))).argv
        assert argv[0] == "ssh"
        assert " text-generation-launcher --model-id /models/smol --hostname 127.0.0.1 " in argv[-1]

    def test_a_key_is_told_it_by_the_environment_and_never_in_its_arguments(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("BAKEOFF_TEST_KEY", "sentinel-0451")
        command = launch(deployment=msgspec.structs.replace(LAUNCHER, api_key_env="BAKEOFF_TEST_KEY"))
        assert command.env["API_KEY"] == "sentinel-0451"
        assert "sentinel-0451" not in " ".join(command.argv)

    def test_a_model_without_files_is_asked_for(self) -> None:
        with pytest.raises(ModelNotFound, match=r"engine 'tgi' needs a model's files; set path in \[model\]"):
            TgiEngine(Setup(Model("smol"), options=TgiOptions(), deployment=LAUNCHER)).launch(9000)

    def test_given_an_address_it_is_not_launched_and_told_nothing(self) -> None:
        engine = made(EngineSpec(seed=1), Deployment(url="http://127.0.0.1:3000"))
        assert (engine.url, engine.launch(9000)) == ("http://127.0.0.1:3000", None)


def test_the_option_says_which_routes() -> None:
    assert type(made().dialect) is TgiNativeDialect
    assert type(made(api="openai").dialect) is TgiDialect
    assert "--api" not in launch(api="openai").argv


def test_notes_explain_its_metrics() -> None:
    notes = " ".join(made().notes)
    assert "compare figures per token" in notes
    assert "more than 1,024 tokens" in notes
    assert "prefix cache is on unless" in notes


def test_there_is_no_call_that_empties_its_prefix_cache() -> None:
    assert asyncio.run(made().reset_cache(attached("http://127.0.0.1:1"))) is False


def test_its_own_figures_are_read_by_the_names_that_it_gives_them() -> None:
    """The figures that it has: it reports no cache hits, no preemptions and no KV usage."""
    source = made().metrics
    assert isinstance(source, Prometheus)
    names = {series.name for part in source.values.values() for series in part}
    assert names == {
        "tgi_batch_current_size", "tgi_queue_size", "tgi_request_skipped_tokens_sum", "tgi_request_input_length_sum",
        "tgi_request_generated_tokens_sum",
    }  # fmt: skip
    assert {histogram.name for histogram in source.histograms.values()} == {
        "tgi_request_duration", "tgi_request_queue_duration",
    }  # fmt: skip
    assert "kv_usage_share" not in source.values


class TestDescription:
    @staticmethod
    def described(fake: FakeTgi) -> dict[str, Any]:
        async def ask() -> dict[str, Any]:
            async with running(fake) as url:
                return await made(deployment=Deployment(url=url)).describe(Server(url))

        return asyncio.run(ask())

    def test_it_is_described_by_its_info_and_the_budget_of_its_warm_up(self) -> None:
        """The budget depends on the free memory, and decides how many requests run at once."""
        description = self.described(FakeTgi(Script()))
        assert (description["version"], description["router"]) == ("3.3.6-dev0", "text-generation-router")
        assert (description["max_total_tokens"], description["max_batch_total_tokens"]) == (4096, 16 * 4096)

    def test_a_server_without_these_pages_is_not_described(self) -> None:
        async def ask() -> dict[str, Any]:
            return await made(deployment=Deployment(url="http://127.0.0.1:1")).describe(attached("http://127.0.0.1:1"))

        assert asyncio.run(ask()) == {}


def test_the_fakes_info_has_every_field_of_the_published_schema() -> None:
    spec = load_spec("tgi-openapi.json")
    description = TestDescription.described(FakeTgi(Script()))
    del description["max_batch_total_tokens"]
    assert problems(description, spec["components"]["schemas"]["Info"], spec) == []
