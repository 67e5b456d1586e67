"""llama-server of llama.cpp: the program itself, or the same server out of package ``xllamacpp``."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from engines.adapters import xllamacpp_server
from engines.adapters.gguf_engine import GgufEngine
from engines.base import Setup
from engines.dialects import Dialect, LlamaCppDialect, LlamaCppNativeDialect
from engines.errors import BadOption, NotInstalled
from engines.identity import MODELS_PAGE, Identity, Pages, field_of
from engines.launcher import Launch, Server
from engines.metrics import MetricsSource, Prometheus, Series
from engines.models.gguf import gguf_file, weights_dtype
from engines.spec import Cannot, Setting, Speculation, Spelling, Spellings, flag, one_of, switch

CACHE_TYPES = {
    **{name: name for name in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")},
    "float32": "f32", "float16": "f16", "bfloat16": "bf16",
}  # fmt: skip
"""Types of a KV cache, by their common names and llama.cpp's own."""
_SLOTS = 4
"""llama-server's own number where none is given."""
_DRAFTS = {"draft": "draft-simple", "eagle3": "draft-eagle3", "mtp": "draft-mtp"}
_IDENTIFYING = ("build_info", "model_path", "model_ftype", "total_slots")
"""What of ``/props`` says which server this was."""
_BURSTS = "accepted drafts come in bursts of single tokens: its gaps between chunks are many of nothing, and long ones"
_WHEEL = "its package's code for CPUs knows AVX2 and nothing newer: a llama-server built on this machine may be faster"
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
        "prompt_tokens_total": (
            Series("llamacpp:prompt_tokens_total"), Series("llamacpp:prompt_tokens_cached_total"),
        ),
        "output_tokens_total": (Series("llamacpp:tokens_predicted_total"),),
    }
)  # fmt: skip
"""Its count of prompt tokens leaves out those from the cache. It has no histograms, and is silent on its KV cache."""


class LlamaCppOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``llama_cpp`` adapter."""

    api: Literal["native", "openai"] = "native"
    """``native``: /completion, with token ids; chats, which it does not take, go to the OpenAI route all the same.
    ``openai``: the OpenAI routes only."""
    cache_prompt: bool | None = None
    """Whether a request may use what a slot has of its prompt; the default is as enable_prefix_caching says."""
    token_ids: bool = False
    """OpenAI routes: have completions' ids sent too, at some 150 bytes a token."""
    threads: int | None = None
    """CPU threads; the default is one for each core."""
    threads_batch: int | None = None
    """CPU threads of the prefill; the default is as many as of the rest."""
    threads_http: int | None = None
    """Threads that answer requests."""
    n_gpu_layers: int | None = None
    """Layers on GPUs; the default is as many as fit."""
    flash_attention: Literal["on", "off", "auto"] | None = None
    """A quantised cache of values needs it."""
    cache_ram_mib: int | None = None
    """Memory for the prompts of slots that were given to others; the default is 8192."""
    ngram_size: int | None = None
    """With speculation ``ngram``: tokens that must have been said before, for what followed them to be proposed; 12."""


def _speculate(value: Speculation) -> Setting | Cannot:
    count = str(value.num_tokens)
    if value.method == "ngram":
        return Setting(("--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", count))
    if value.method not in _DRAFTS:
        return Cannot(f"it knows ngram, {', '.join(_DRAFTS)}, not {value.method!r}")
    if value.model is None and value.method != "mtp":
        return Cannot(f"{value.method} needs the model that drafts, in speculation.model")
    return Setting(("--spec-type", _DRAFTS[value.method], "--spec-draft-n-max", count))


def _cache_type(value: str) -> Setting | Cannot:
    if value == "auto":
        return Setting()
    known = CACHE_TYPES.get(value)
    return Setting(("-ctk", known, "-ctv", known)) if known else Cannot(f"it knows auto, {', '.join(CACHE_TYPES)}")


def _split(mode: str) -> Spelling:
    """Over so many GPUs, in equal shares."""
    return lambda value: Setting(("-sm", mode, "-ts", ",".join(["1"] * value)) if value > 1 else ())


class LlamaCppEngine(GgufEngine):
    """Starts ``llama-server``: from ``program``, from PATH, or out of the environment ``llama-cpp``."""

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
        "max_model_len": switch(None),  # these two make -c and -np together
        "max_num_seqs": switch(None),
        "max_num_batched_tokens": lambda value: Setting(("-b", str(value), "-ub", str(value))),
        "tensor_parallel_size": _split("row"),
        "pipeline_parallel_size": _split("layer"),
        "enable_prefix_caching": switch(None, "--no-cache-prompt"),
        "enable_chunked_prefill": one_of((True,), switch(None)),
        "speculation": _speculate,
        "seed": flag("--seed"),
        "memory_fraction": Cannot("it takes what weights and contexts need; bound those with max_model_len"),
    }
    key_variable = "LLAMA_API_KEY"
    ready_timeout_s = 600.0
    metrics: MetricsSource | None = METRICS

    @classmethod
    def identify(cls, pages: Pages) -> Identity | None:
        """See :class:`~engines.server_engine.ServerEngine`; ``/props`` says which file it loaded."""
        identity = super().identify(pages)
        return identity and msgspec.structs.replace(identity, checkpoint=field_of(pages, "/props", "model_path"))

    notes: Sequence[str] = ("its own count of generated tokens moves only when a request ends",)

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:
        """The one that the option ``api`` names."""
        options: LlamaCppOptions = setup.options
        cache_prompt = setup.spec.enable_prefix_caching if options.cache_prompt is None else options.cache_prompt
        if options.api == "native":
            return LlamaCppNativeDialect(cache_prompt=cache_prompt)
        return LlamaCppDialect(cache_prompt=cache_prompt, token_ids=options.token_ids)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """See :class:`~engines.server_engine.ServerEngine`; each slot has its part of the whole context."""
        super().check(setup)
        spec = setup.spec
        if setup.deployment.url is not None:
            return
        if spec.max_num_seqs and not spec.max_model_len:
            raise BadOption(
                f"engine '{cls.adapter}' splits its context among max_num_seqs slots; set max_model_len too"
            )
        if max(spec.tensor_parallel_size or 1, 1) > 1 and max(spec.pipeline_parallel_size or 1, 1) > 1:
            raise BadOption(f"engine '{cls.adapter}' splits layers or what is in them, not both; leave one out")

    def launch(self, port: int) -> Launch | None:
        """See :class:`engines.base.Engine`; notes what is special about this build, these weights, this setting."""
        made = super().launch(port)
        if made is None:
            return None
        deployment, notes = self.setup.deployment, list(type(self).notes)
        if not (deployment.container or deployment.ssh or self._program()):
            notes.append(_WHEEL)
        if self.setup.spec.speculation:
            notes.append(_BURSTS)
        if file := self._other_weights():
            notes.append(f"it serves the quantised weights of {file}; engines that read safetensors serve others")
        self.notes = notes
        return made

    def _other_weights(self) -> str | None:
        """Name of the file, where it is quantised and lies beside safetensors that are not."""
        folder = Path(self.setup.model.path or "")
        if self.setup.deployment.ssh or not any(folder.glob("*.safetensors")):
            return None
        file = Path(self.model_file())
        return file.name if weights_dtype(file) == "quantised" else None

    def command(self) -> Sequence[str]:
        """The program, or the script that stands for it; on another host the program is looked for there."""
        if self.setup.deployment.ssh:
            return self.programs
        if program := self._program():
            return (program,)
        place = self.environment()
        if place.version("xllamacpp") is None:
            raise NotInstalled(f"{place.name} holds no xllamacpp", f"bakeoff engines install {self.recipes[0]}")
        return (str(place.python), "-I", xllamacpp_server.__file__)  # isolated: beside it lie modules named as packages

    def _program(self) -> str | None:
        """Where llama-server itself is: named, on PATH, or in the environment that was asked for; None for nowhere."""
        deployment = self.setup.deployment
        if deployment.program or not deployment.environment:
            return deployment.program or shutil.which(self.programs[0])
        inside = self.environment().program(self.programs[0])
        return str(inside) if inside.exists() else None

    def installed_version(self) -> str | None:
        """The version of the package; None where the program is not of it."""
        return None if self._program() else super().installed_version()

    def arguments(self, host: str, port: int, model: str) -> Sequence[str]:
        """Where to listen, contexts, and its own options. Nothing is fitted to memory behind the experiment's back."""
        argv = ["-m", model, "--alias", self.model_id, "--host", host, "--port", str(port)]
        argv += ["--metrics", "--slots", "--no-webui", "--fit", "off", *self._contexts()]
        speculation, options = self.setup.spec.speculation, self.setup.options
        if speculation and speculation.model:
            argv += ["-md", str(gguf_file(speculation.model, None))]
        for word, value in (
            ("-t", options.threads), ("-tb", options.threads_batch), ("--threads-http", options.threads_http),
            ("-ngl", options.n_gpu_layers), ("-fa", options.flash_attention), ("--cache-ram", options.cache_ram_mib),
            ("--spec-ngram-simple-size-n", options.ngram_size),
        ):  # fmt: skip
            argv += [word, str(value)] if value is not None else []
        return argv

    def _contexts(self) -> list[str]:
        """``-c`` is the whole context, of which each slot gets an equal part."""
        spec = self.setup.spec
        slots = spec.max_num_seqs or _SLOTS
        if spec.max_model_len is None:
            return []
        return ["-c", str(spec.max_model_len * slots), "-np", str(slots)]

    async def describe(self, server: Server) -> dict[str, Any]:
        """What ``/props`` and ``/v1/models`` say of the build, the file and the slots.

        Raises:
            BadOption: its slots are fewer or shorter than was asked for.
        """
        props: dict[str, Any] = await server.get_json("/props") or {}
        models: dict[str, Any] = await server.get_json("/v1/models") or {}
        told: dict[str, Any] = {name: props[name] for name in _IDENTIFYING if name in props}
        told["n_ctx_slot"] = props.get("default_generation_settings", {}).get("n_ctx")
        meta = next(iter(models.get("data") or ()), {}).get("meta") or {}
        told |= {name: meta[name] for name in ("n_ctx_train", "n_params", "size") if name in meta}
        version = self.installed_version()
        self._check_slots(told)
        return {"version": version or props.get("build_info"), **told}

    def _check_slots(self, told: dict[str, Any]) -> None:
        spec = self.setup.spec
        for asked, made, name in (
            (spec.max_model_len, told["n_ctx_slot"], "max_model_len"),
            (spec.max_num_seqs, told.get("total_slots"), "max_num_seqs"),
        ):
            if self.url is None and asked and made and made < asked:
                raise BadOption(
                    f"llama-server made {name} {made} where {asked} was asked for; lower it, or see its log"
                )
