"""Adapter of llama-cpp-python's OpenAI-compatible server: llama.cpp for one request at a time.

Source: https://github.com/abetlen/llama-cpp-python, ``llama_cpp/server``. Its quirks:

- It answers one request at a time, and by default a new request aborts the running stream.
- The environment variables HOST and PORT take precedence over its flags.
- Streams have no usage, so answers are counted by the model's tokenizer and prompts not at all.
- It has neither metrics nor a health page; ``/v1/models`` answers once it is ready.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from bakeoff.engines.adapters.gguf_engine import GgufEngine
from bakeoff.engines.base import Setup
from bakeoff.engines.dialects import Dialect, LlamaCppPythonDialect
from bakeoff.engines.errors import NotInstalled
from bakeoff.engines.identity import MODELS_PAGE, Identity, Pages, field_of, listed_models
from bakeoff.engines.launcher import Launch, Server
from bakeoff.engines.spec import Cannot, Setting, Speculation, Spelling, Spellings, flag, one_of, switch

_CACHE_TYPES = {
    "f32": 0, "float32": 0, "f16": 1, "float16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8,
    "iq4_nl": 20, "bf16": 30, "bfloat16": 30,
}  # fmt: skip
"""Numbers of ggml's types for the KV cache, by their common names and llama.cpp's own."""
_BY_LAYER, _BY_ROW = 1, 2
"""Numbers of llama.cpp's split modes."""


class LlamaCppPythonOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``llama_cpp_python`` adapter."""

    threads: int | None = None
    """CPU threads of decoding; the default is half the number of cores."""
    threads_batch: int | None = None
    """CPU threads of the prefill; the default is the number of cores."""
    n_gpu_layers: int | None = None
    """Layers on GPUs, -1 for all; the default is none."""
    flash_attention: bool | None = None
    """Whether to use flash attention, which a quantised KV cache requires."""
    logits_all: bool = False
    """Keep the logits of every token: slow, but required for log-probabilities."""
    chat_format: str = "chat_template.default"
    """Chat template; the default is the model's own, where the server by itself would guess one."""


def _speculate(value: Speculation) -> Setting | Cannot:
    if value.method != "ngram":
        return Cannot(f"it knows ngram only, not {value.method!r}")
    count = str(value.num_tokens)
    return Setting(("--draft_model", "prompt-lookup-decoding", "--draft_model_num_pred_tokens", count))


def _cache_type(value: str) -> Setting | Cannot:
    if value == "auto":
        return Setting()
    if value not in _CACHE_TYPES:
        return Cannot(f"it knows auto, {', '.join(_CACHE_TYPES)}")
    number = str(_CACHE_TYPES[value])
    return Setting(("--type_k", number, "--type_v", number))


def _split(mode: int) -> Spelling:
    """Split the model equally among the given number of GPUs."""
    return lambda value: Setting(("--split_mode", str(mode), "--tensor_split", *["1"] * value) if value > 1 else ())


class LlamaCppPythonEngine(GgufEngine):
    """Starts ``python -m llama_cpp.server``, which opens its port once the model is loaded."""

    adapter = "llama_cpp_python"
    Options = LlamaCppPythonOptions
    identity_pages = (MODELS_PAGE, "/openapi.json")
    lists_model = True
    recipes = ("llama-cpp-python",)
    distributions = ("llama-cpp-python",)
    spellings: ClassVar[Spellings] = {
        **GgufEngine.of_weights,
        "kv_cache_dtype": _cache_type,
        "max_model_len": flag("--n_ctx"),
        "max_num_seqs": lambda value: Setting() if value == 1 else Cannot("it answers one request at a time"),
        "max_num_batched_tokens": lambda value: Setting(("--n_batch", str(value), "--n_ubatch", str(value))),
        "tensor_parallel_size": _split(_BY_ROW),
        "pipeline_parallel_size": _split(_BY_LAYER),
        "enable_prefix_caching": one_of((True,), switch(None)),  # it always reuses the last request's state
        "enable_chunked_prefill": one_of((True,), switch(None)),
        "speculation": _speculate,
        "seed": flag("--seed"),
        "memory_fraction": Cannot("it allocates what weights and context need; bound that with max_model_len"),
        "cpu_offload_gb": Cannot("it counts layers; set its option n_gpu_layers"),
    }
    container_command = ("python3", "-m", "llama_cpp.server")
    key_variable = "API_KEY"
    ready_path = "/v1/models"
    notes: Sequence[str] = (
        "it answers one request at a time: the others wait",
        "it reports no token counts: answers are counted by the model's tokenizer, and prompts not at all",
    )

    @classmethod
    def identify(cls, pages: Pages) -> Identity | None:
        """Recognised by the title of its OpenAPI page."""
        title = field_of(pages, "/openapi.json", "info", "title")
        names = tuple(model.id for model in listed_models(pages))
        return Identity(cls.adapter, names) if title == "llama.cpp Python API" else None

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:
        """The dialect of llama-cpp-python's server."""
        return LlamaCppPythonDialect(logprobs=setup.options.logits_all)

    def launch(self, port: int) -> Launch | None:
        """Also sets HOST and PORT, which take precedence over the flags."""
        launch = super().launch(port)
        if launch is None or self.setup.deployment.container or self.setup.deployment.ssh:
            return launch
        address = {"HOST": "127.0.0.1", "PORT": str(port)}
        return msgspec.structs.replace(launch, env={**launch.env, **address})

    def command(self) -> Sequence[str]:
        """The module, run by the configured interpreter or that of its environment."""
        if self.setup.deployment.ssh:
            return self.container_command
        if self.setup.deployment.program:
            return (self.setup.deployment.program, "-m", "llama_cpp.server")
        place = self.environment()
        if place.version("llama-cpp-python") is None:
            raise NotInstalled(f"{place.name} has no llama-cpp-python", "bakeoff engines install llama-cpp-python")
        return (str(place.python), "-m", "llama_cpp.server")

    def arguments(self, host: str, port: int, model: str) -> Sequence[str]:
        """Model, address and options; also disables that a new request aborts the running stream."""
        options: LlamaCppPythonOptions = self.setup.options
        argv = ["--model", model, "--model_alias", self.model_id, "--host", host, "--port", str(port)]
        argv += ["--interrupt_requests", "false", "--logits_all", str(options.logits_all).lower()]
        for name, value in (
            ("--chat_format", options.chat_format), ("--n_threads", options.threads),
            ("--n_threads_batch", options.threads_batch), ("--n_gpu_layers", options.n_gpu_layers),
            ("--flash_attn", options.flash_attention),
        ):  # fmt: skip
            argv += [name, str(value).lower() if isinstance(value, bool) else str(value)] if value is not None else []
        return argv

    async def describe(self, server: Server) -> dict[str, Any]:
        """The version, from its OpenAPI page."""
        page: dict[str, Any] = await server.get_json("/openapi.json") or {}
        version = page.get("info", {}).get("version")
        return {"version": version} if version else await super().describe(server)
