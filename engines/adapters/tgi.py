"""Adapter of TGI (text-generation-inference), by its native routes or its OpenAI routes.

Source: https://huggingface.co/docs/text-generation-inference and the launcher's ``--help``. Its quirks:

- The length of an answer cannot be forced.
- Attention kernels, prefix caching and chunked prefill are set by environment variables, not flags.
- It chooses the size of its KV cache during warm-up; only its metrics report it.
- It opens a second port for Prometheus, always 9000 unless set.
- It sends usage statistics to its makers unless told not to.
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from bakeoff.engines.base import Setup
from bakeoff.engines.dialects import Dialect, TgiDialect, TgiNativeDialect
from bakeoff.engines.errors import BadOption, NotInstalled
from bakeoff.engines.identity import Identity, Pages, field_of
from bakeoff.engines.launcher import Server, pick_port
from bakeoff.engines.metrics import Histogram, MetricsSource, Prometheus, Series
from bakeoff.engines.server_engine import ServerEngine
from bakeoff.engines.spec import Cannot, Setting, Speculation, Spelling, Spellings, flag, one_of, option_argv, variable

_QUANTIZATIONS = (
    "awq", "compressed-tensors", "eetq", "exl2", "gptq", "marlin", "bitsandbytes", "bitsandbytes-nf4",
    "bitsandbytes-fp4", "fp8",
)  # fmt: skip
_KV_DTYPES = {"fp8": "fp8_e4m3fn", "fp8_e4m3": "fp8_e4m3fn", "fp8_e4m3fn": "fp8_e4m3fn", "fp8_e5m2": "fp8_e5m2"}
_BUDGET = re.compile(rb"^tgi_batch_max_total_tokens(?:\{[^}]*\})? (\d+)(?:\.0*)?$", re.MULTILINE)
_METRICS = Prometheus(
    values={
        "running": (Series("tgi_batch_current_size"),),
        "waiting": (Series("tgi_queue_size"),),
        "accepted_tokens_total": (Series("tgi_request_skipped_tokens_sum"),),
        "prompt_tokens_total": (Series("tgi_request_input_length_sum"),),
        "output_tokens_total": (Series("tgi_request_generated_tokens_sum"),),
    },
    histograms={"e2e_s": Histogram("tgi_request_duration"), "queue_s": Histogram("tgi_request_queue_duration")},
)
"""TGI reports neither KV usage nor preemptions nor cache hits; it reserves KV for whole requests."""


class TgiOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``tgi`` adapter; unless noted, each is the launcher's flag of that name."""

    api: Literal["native", "openai"] = "native"
    """``native``: /generate_stream, with token ids, for prompts and the OpenAI route for chats. ``openai``: the OpenAI
    routes only."""
    attention: str | None = None
    """``flashinfer``, ``flashdecoding`` or ``paged``; set as the variable ATTENTION."""
    max_concurrent_requests: int | None = None
    """Maximum number of concurrent requests; further ones are refused. The launcher's default is 128."""
    max_input_tokens: int | None = None
    """Longest prompt in tokens; with max_model_len, the default leaves one token for the answer."""
    max_batch_total_tokens: int | None = None
    """Tokens of KV cache that a batch can reserve; the default is determined at warm-up from the free memory."""
    waiting_served_ratio: float | None = None
    """Ratio of waiting to running requests above which a prefill interrupts decoding; unused with chunked prefill."""
    max_waiting_tokens: int | None = None
    """Steps after which waiting requests are admitted anyway; unused with chunked prefill."""
    cuda_graphs: str | None = None
    """Comma-separated batch sizes to capture; ``0`` for none."""
    validation_workers: int | None = None
    """Threads that tokenise prompts; the launcher's default is 2."""


def _speculate(value: Speculation) -> Setting | Cannot:
    if value.method not in {"ngram", "medusa"}:
        return Cannot(f"it knows ngram, and medusa if the model has the heads, not {value.method!r}")
    return Cannot("it takes no second model") if value.model else Setting(("--speculate", str(value.num_tokens)))


def _or_auto(spelling: Spelling) -> Spelling:
    """Omit the setting for ``auto``, which is the launcher's default."""
    return lambda value: Setting() if value == "auto" else spelling(value)


def _total_tokens(value: int) -> Setting | Cannot:
    return Setting(("--max-total-tokens", str(value))) if value > 1 else Cannot("a prompt and its answer need 2")


def _kv_cache(value: str) -> Setting | Cannot:
    kv_dtype = _KV_DTYPES.get(value)
    return Setting(("--kv-cache-dtype", kv_dtype)) if kv_dtype else Cannot(f"it knows auto, {', '.join(_KV_DTYPES)}")


class TgiEngine(ServerEngine):
    """Starts ``text-generation-launcher``, which opens its port once the model is loaded and warmed up."""

    adapter = "tgi"
    Options = TgiOptions
    identity_pages = ("/info",)
    programs = ("text-generation-launcher",)
    spellings: ClassVar[Spellings] = {
        "dtype": _or_auto(one_of(("float16", "bfloat16"), flag("--dtype"))),
        "quantization": one_of(_QUANTIZATIONS, flag("--quantize")),
        "kv_cache_dtype": _or_auto(_kv_cache),
        "max_model_len": _total_tokens,
        "max_num_seqs": flag("--max-batch-size"),
        "max_num_batched_tokens": flag("--max-batch-prefill-tokens"),
        "tensor_parallel_size": flag("--num-shard"),
        "pipeline_parallel_size": lambda value: Setting() if value == 1 else Cannot("it has tensor parallelism only"),
        "enable_prefix_caching": variable("PREFIX_CACHING"),
        "enable_chunked_prefill": variable("PREFILL_CHUNKING"),
        "speculation": _speculate,
        "seed": Cannot("it has seeds per request only, and greedy decoding needs none"),
        "memory_fraction": flag("--cuda-memory-fraction"),
    }
    setting_places: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "dtype": ("model_dtype",),
        "max_model_len": ("max_total_tokens",),
    }
    key_variable = "API_KEY"
    ready_timeout_s = 900.0
    stop_grace_s = (15.0, 10.0)
    metrics: MetricsSource | None = _METRICS
    notes = (
        "answers end where the model ends them, because their length cannot be forced: compare figures per token",
        "an answer of more than 1,024 tokens is generated in pieces; each after the first waits for its own prefill",
        "its prefix cache is on unless enable_prefix_caching is false, and cannot be emptied while it runs",
    )

    @classmethod
    def identify(cls, pages: Pages) -> Identity | None:
        """Recognised by ``router`` in ``/info``."""
        if field_of(pages, "/info", "router") != "text-generation-router":
            return None
        model = str(field_of(pages, "/info", "model_id"))
        return Identity(cls.adapter, (model,), model)

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:
        """The dialect of the option ``api``."""
        return TgiNativeDialect() if setup.options.api == "native" else TgiDialect()

    @classmethod
    def check(cls, setup: Setup) -> None:
        """With quantization, the engine chooses the dtype itself."""
        super().check(setup)
        spec = setup.spec
        if setup.deployment.address is None and spec.quantization and spec.dtype not in {None, "auto"}:
            raise BadOption(f"engine '{cls.adapter}' takes dtype or quantization, not both; leave one out")

    def command(self) -> Sequence[str]:
        """The launcher: the configured program, or the one on PATH of the host."""
        program = self.setup.deployment.program or shutil.which(self.programs[0])
        if program or self.setup.deployment.ssh:
            return (program or self.programs[0],)
        raise NotInstalled(
            f"{self.programs[0]} is not on PATH, and no package has it; use a container, or give its url"
        )

    def arguments(self, host: str, port: int, model: str) -> Sequence[str]:
        """Model, address and options; also disables usage statistics and sets what has no deterministic default."""
        options: TgiOptions = self.setup.options
        argv = ["--model-id", model, "--hostname", host, "--port", str(port), "--usage-stats", "off"]
        if not (self.setup.deployment.container or self.setup.deployment.ssh):
            argv += ["--prometheus-port", str(pick_port())]  # the default is always 9000
        total = self.setup.spec.max_model_len
        if total is not None and options.max_input_tokens is None:
            argv += ["--max-input-tokens", str(total - 1)]  # the default can exceed the total, which TGI refuses
        return [*argv, *option_argv(msgspec.structs.replace(options, api="native", attention=None))]

    def environ(self) -> dict[str, str]:
        """ATTENTION selects the attention kernels."""
        attention = self.setup.options.attention
        return {**super().environ(), **({"ATTENTION": attention} if attention else {})}

    async def describe(self, server: Server) -> dict[str, Any]:
        """``/info``, and the KV budget in tokens that the warm-up determined, which only the metrics have."""
        info: dict[str, Any] = await server.get_json("/info") or {}
        _, page = await server.ask("GET", "/metrics")
        budget = _BUDGET.search(page)
        return {**info, "max_batch_total_tokens": int(budget[1])} if budget else info
