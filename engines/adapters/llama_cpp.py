"""Adapter of llama.cpp's llama-server: the program itself, or the same server from the package ``xllamacpp``.

Source: ``tools/server/README.md`` of https://github.com/ggml-org/llama.cpp. Its quirks:

- ``-c`` is the context of all slots together, so max_model_len and max_num_seqs are passed as a product.
- By default it shrinks settings to fit the memory; a launch disables that and checks the slots of the server.
- The weights' type is that of the GGUF file, which can be a quantised copy of what other engines serve.
- Its count of prompt tokens excludes cached ones, which are added again; its count of output tokens changes only when a
  request ends; it has no histograms and no KV usage.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from bakeoff.engines.adapters import xllamacpp_server
from bakeoff.engines.adapters.gguf_engine import GgufEngine
from bakeoff.engines.base import Setup
from bakeoff.engines.dialects import Dialect, LlamaCppDialect, LlamaCppNativeDialect
from bakeoff.engines.errors import BadOption, NotInstalled
from bakeoff.engines.identity import MODELS_PAGE, Identity, Pages, field_of
from bakeoff.engines.launcher import Launch, Server
from bakeoff.engines.metrics import MetricsSource, Positions, Prometheus, Series
from bakeoff.engines.models.gguf import gguf_file, weights_dtype
from bakeoff.engines.spec import Cannot, Setting, Speculation, Spelling, Spellings, flag, one_of, switch

CACHE_TYPES = {
    **{name: name for name in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")},
    "float32": "f32", "float16": "f16", "bfloat16": "bf16",
}  # fmt: skip
"""llama.cpp's types of the KV cache, by common and own names."""
_SLOTS = 4
"""llama-server's default number of slots."""
_DRAFTS = {"draft": "draft-simple", "eagle3": "draft-eagle3", "mtp": "draft-mtp"}
"""llama.cpp's names of speculation methods, by ours."""
_IDENTIFYING = ("build_info", "model_path", "model_ftype", "total_slots")
"""Fields of ``/props`` that describe the engine in reports."""
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Types of files whose weights are not quantised."""
_BURSTS = "accepted drafts come in bursts of single tokens: most gaps between chunks are near zero, the others long"
_WHEEL = "its package's CPU code knows AVX2 and nothing newer: a llama-server built on this machine may be faster"
METRICS = Prometheus(
    values={
        "running": (Series("llamacpp:requests_processing"),),
        "waiting": (Series("llamacpp:requests_deferred"),),
        "prefix_queries_tokens_total": (
            Series("llamacpp:prompt_tokens_total"), Series("llamacpp:prompt_tokens_cached_total"),
        ),
        "prefix_hits_tokens_total": (Series("llamacpp:prompt_tokens_cached_total"),),
        "drafted_tokens_total": (Series("llamacpp:spec_decode_num_draft_tokens_total"),),
        "accepted_tokens_total": (Series("llamacpp:spec_decode_num_accepted_tokens_total"),),
        "verifications_total": (Series("llamacpp:spec_decode_num_drafts_total"),),
        "prompt_tokens_total": (
            Series("llamacpp:prompt_tokens_total"), Series("llamacpp:prompt_tokens_cached_total"),
        ),
        "output_tokens_total": (Series("llamacpp:tokens_predicted_total"),),
    },
    accepted_at=Positions("llamacpp:spec_decode_num_accepted_tokens_per_pos_total"),
)  # fmt: skip
"""Prompt tokens exclude cached ones, so both are added. There are no histograms and no KV usage."""


class LlamaCppOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``llama_cpp`` adapter."""

    api: Literal["native", "openai"] = "native"
    """``native``: /completion, with token ids, for prompts and the OpenAI route for chats. ``openai``: the OpenAI
    routes only."""
    cache_prompt: bool | None = None
    """Whether a request may reuse a slot's cached prefix of its prompt; the default is enable_prefix_caching."""
    token_ids: bool = False
    """Request token ids in completions of the OpenAI route, at about 150 bytes per token."""
    threads: int | None = None
    """CPU threads of decoding; the default is the number of cores."""
    threads_batch: int | None = None
    """CPU threads of the prefill; the default is ``threads``."""
    threads_http: int | None = None
    """Threads of the HTTP server."""
    n_gpu_layers: int | None = None
    """Layers on GPUs; the default is as many as fit."""
    flash_attention: Literal["on", "off", "auto"] | None = None
    """Whether to use flash attention, which a quantised KV cache requires."""
    cache_ram_mib: int | None = None
    """Host memory for cached prompts of reassigned slots, in MiB; the default is 8192."""
    ngram_size: int | None = None
    """Length of the n-gram that speculation ``ngram`` looks up, in tokens; the default is 12."""


def _speculate(value: Speculation) -> Setting | Cannot:
    count = str(value.num_tokens)
    if value.method == "ngram":
        return Setting(("--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", count))
    if value.method not in _DRAFTS:
        return Cannot(f"it knows ngram, {', '.join(_DRAFTS)}, not {value.method!r}")
    if value.model is None and value.method != "mtp":
        return Cannot(f"{value.method} needs a draft model, in speculation.model")
    return Setting(("--spec-type", _DRAFTS[value.method], "--spec-draft-n-max", count))


def _cache_type(value: str) -> Setting | Cannot:
    if value == "auto":
        return Setting()
    cache_type = CACHE_TYPES.get(value)
    return (
        Setting(("-ctk", cache_type, "-ctv", cache_type))
        if cache_type
        else Cannot(f"it knows auto, {', '.join(CACHE_TYPES)}")
    )


def _split(mode: str) -> Spelling:
    """Split the model equally among the given number of GPUs."""
    return lambda value: Setting(("-sm", mode, "-ts", ",".join(["1"] * value)) if value > 1 else ())


class LlamaCppEngine(GgufEngine):
    """Starts ``llama-server`` from ``program``, PATH or the environment ``llama-cpp``."""

    adapter = "llama_cpp"
    Options = LlamaCppOptions
    owned_by = "llamacpp"
    identity_pages = (MODELS_PAGE, "/props")
    lists_model = True
    programs = ("llama-server",)
    recipes = ("llama-cpp",)
    distributions = ("xllamacpp",)
    spellings: ClassVar[Spellings] = {
        **GgufEngine.of_weights,
        "kv_cache_dtype": _cache_type,
        "max_model_len": switch(None),  # _contexts() makes -c and -np of both
        "max_num_seqs": switch(None),
        "max_num_batched_tokens": lambda value: Setting(("-b", str(value), "-ub", str(value))),
        "tensor_parallel_size": _split("row"),
        "pipeline_parallel_size": _split("layer"),
        "enable_prefix_caching": switch(None, "--no-cache-prompt"),
        "enable_chunked_prefill": one_of((True,), switch(None)),
        "speculation": _speculate,
        "seed": flag("--seed"),
        "memory_fraction": Cannot("it allocates what weights and contexts need; bound those with max_model_len"),
        "cpu_offload_gb": Cannot("it counts layers; set its option n_gpu_layers"),
    }
    setting_places: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "max_model_len": ("n_ctx_slot",),
        "max_num_seqs": ("total_slots",),
    }
    key_variable = "LLAMA_API_KEY"
    ready_timeout_s = 600.0
    metrics: MetricsSource | None = METRICS

    @classmethod
    def identify(cls, pages: Pages) -> Identity | None:
        """``/props`` names the loaded file."""
        identity = super().identify(pages)
        return identity and msgspec.structs.replace(identity, checkpoint=field_of(pages, "/props", "model_path"))

    notes: Sequence[str] = ("its own count of generated tokens moves only when a request ends",)

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:
        """The dialect of the option ``api``."""
        options: LlamaCppOptions = setup.options
        cache_prompt = setup.spec.enable_prefix_caching if options.cache_prompt is None else options.cache_prompt
        if options.api == "native":
            return LlamaCppNativeDialect(cache_prompt=cache_prompt, token_ids=True)
        return LlamaCppDialect(cache_prompt=cache_prompt, token_ids=options.token_ids)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Also checks slots and splits."""
        super().check(setup)
        spec = setup.spec
        if setup.deployment.address is not None:
            return
        if spec.max_num_seqs and not spec.max_model_len:
            raise BadOption(
                f"engine '{cls.adapter}' splits its context among max_num_seqs slots; set max_model_len too"
            )
        if max(spec.tensor_parallel_size or 1, 1) > 1 and max(spec.pipeline_parallel_size or 1, 1) > 1:
            raise BadOption(f"engine '{cls.adapter}' has tensor or pipeline parallelism, not both; leave one out")

    def launch(self, port: int) -> Launch | None:
        """Also adds notes on the build, the weights and speculation."""
        launch = super().launch(port)
        if launch is None:
            return None
        deployment, notes = self.setup.deployment, list(type(self).notes)
        if not (deployment.container or deployment.ssh or self._program()):
            notes.append(_WHEEL)
        if self.setup.spec.speculation:
            notes.append(_BURSTS)
        if file := self._quantised_copy():
            notes.append(f"it serves the quantised weights of {file}; engines that read safetensors do not")
        self.notes = notes
        return launch

    def _quantised_copy(self) -> str | None:
        """Name of the served file if it is a quantised copy beside safetensors, which other engines serve."""
        folder = Path(self.setup.model.path or "")
        if self.setup.deployment.ssh or not any(folder.glob("*.safetensors")):
            return None
        file = Path(self.model_file())
        return file.name if weights_dtype(file) == "quantised" else None

    def command(self) -> Sequence[str]:
        """The program, or the script that runs the package's server; over ssh, the program on PATH there."""
        if self.setup.deployment.ssh:
            return self.programs
        if program := self._program():
            return (program,)
        place = self.environment()
        if place.version("xllamacpp") is None:
            raise NotInstalled(f"{place.name} has no xllamacpp", f"bakeoff engines install {self.recipes[0]}")
        return (str(place.python), "-I", xllamacpp_server.__file__)  # -I: its folder has modules named like packages

    def _program(self) -> str | None:
        """Path of llama-server: configured, on PATH, or in the configured environment; None if there is none."""
        deployment = self.setup.deployment
        if deployment.program or not deployment.environment:
            return deployment.program or shutil.which(self.programs[0])
        inside = self.environment().program(self.programs[0])
        return str(inside) if inside.exists() else None

    def installed_version(self) -> str | None:
        """The version of the package; None if another program is used."""
        return None if self._program() else super().installed_version()

    def arguments(self, host: str, port: int, model: str) -> Sequence[str]:
        """Model, address, contexts and options; also disables fitting settings to the memory."""
        argv = ["-m", model, "--alias", self.model_id, "--host", host, "--port", str(port)]
        argv += ["--metrics", "--slots", "--no-webui", "--fit", "off", *self._contexts()]
        speculation, options = self.setup.spec.speculation, self.setup.options
        if speculation and speculation.model:
            argv += ["-md", str(gguf_file(speculation.model, None))]
        for name, value in (
            ("-t", options.threads), ("-tb", options.threads_batch), ("--threads-http", options.threads_http),
            ("-ngl", options.n_gpu_layers), ("-fa", options.flash_attention), ("--cache-ram", options.cache_ram_mib),
            ("--spec-ngram-simple-size-n", options.ngram_size),
        ):  # fmt: skip
            argv += [name, str(value)] if value is not None else []
        return argv

    def _contexts(self) -> list[str]:
        """``-c`` and ``-np``; the server divides the total context ``-c`` equally among the slots."""
        spec = self.setup.spec
        slots = spec.max_num_seqs or _SLOTS
        if spec.max_model_len is None:
            return []
        return ["-c", str(spec.max_model_len * slots), "-np", str(slots)]

    def settings_in(self, description: Mapping[str, Any]) -> dict[str, Any]:
        """The type of the file gives that of the weights: ``dtype`` if they are not quantised."""
        kind = description.get("model_ftype")
        weights = {"dtype": _DTYPES[kind]} if kind in _DTYPES else {"quantization": kind} if kind else {}
        return {**weights, **super().settings_in(description)}

    async def describe(self, server: Server) -> dict[str, Any]:
        """Build, file and slots, from ``/props`` and ``/v1/models``.

        Raises:
            BadOption: the server has fewer or shorter slots than configured.
        """
        props: dict[str, Any] = await server.get_json("/props") or {}
        models: dict[str, Any] = await server.get_json("/v1/models") or {}
        description: dict[str, Any] = {name: props[name] for name in _IDENTIFYING if name in props}
        description["n_ctx_slot"] = props.get("default_generation_settings", {}).get("n_ctx")
        meta = next(iter(models.get("data") or ()), {}).get("meta") or {}
        description |= {name: meta[name] for name in ("n_ctx_train", "n_params", "size") if name in meta}
        version = self.installed_version()
        self._check_slots(description)
        return {"version": version or props.get("build_info"), **description}

    def _check_slots(self, description: dict[str, Any]) -> None:
        spec = self.setup.spec
        for configured, actual, name in (
            (spec.max_model_len, description["n_ctx_slot"], "max_model_len"),
            (spec.max_num_seqs, description.get("total_slots"), "max_num_seqs"),
        ):
            if self.url is None and configured and actual and actual < configured:
                raise BadOption(
                    f"llama-server made {name} {actual} where {configured} was asked for; lower it, or see its log"
                )
