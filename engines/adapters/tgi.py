"""TGI (text-generation-inference): Hugging Face's launcher, its own routes or its OpenAI routes."""

import re
import shutil
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import msgspec

from engines.base import Setup
from engines.dialects import Dialect, TgiDialect, TgiNativeDialect
from engines.errors import BadOption, NotInstalled
from engines.identity import Identity, Pages, field_of
from engines.launcher import Server, pick_port
from engines.metrics import Histogram, MetricsSource, Prometheus, Series
from engines.server_engine import ServerEngine
from engines.spec import Cannot, Setting, Speculation, Spelling, Spellings, flag, one_of, option_argv, variable

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
"""It reserves KV for whole requests and says nothing of what is used, and counts neither preemptions nor cache hits."""


class TgiOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``tgi`` adapter; where nothing else is said, each is the launcher's flag of that name."""

    api: Literal["native", "openai"] = "native"
    """``native``: /generate_stream, with token ids; chats, which it does not take, go to the OpenAI route all the same.
    ``openai``: the OpenAI routes only."""
    attention: str | None = None
    """``flashinfer``, ``flashdecoding`` or ``paged``; the variable ATTENTION."""
    max_concurrent_requests: int | None = None
    """Requests above this number are refused at once; the launcher's default is 128."""
    max_input_tokens: int | None = None
    """Longest prompt; where max_model_len is set, the default leaves one token for the answer."""
    max_batch_total_tokens: int | None = None
    """Tokens of KV cache that a batch may reserve; by default found out at warm-up from the memory that is free."""
    waiting_served_ratio: float | None = None
    """Waiting against running requests, above which a prefill interrupts decoding; without effect where it chunks."""
    max_waiting_tokens: int | None = None
    """Steps after which waiting requests are let in all the same; without effect where it chunks."""
    cuda_graphs: str | None = None
    """Batch sizes with commas; ``0`` for none."""
    validation_workers: int | None = None
    """Threads that tokenise prompts; the launcher's default is 2."""


def _speculate(value: Speculation) -> Setting | Cannot:
    if value.method not in {"ngram", "medusa"}:
        return Cannot(f"it knows ngram, and medusa where the model has the heads, not {value.method!r}")
    return Cannot("it takes no second model") if value.model else Setting(("--speculate", str(value.num_tokens)))


def _or_auto(spelling: Spelling) -> Spelling:
    """``auto`` is what it does untold."""
    return lambda value: Setting() if value == "auto" else spelling(value)


def _whole(value: int) -> Setting | Cannot:
    return Setting(("--max-total-tokens", str(value))) if value > 1 else Cannot("a prompt and its answer need 2")


def _kv_cache(value: str) -> Setting | Cannot:
    known = _KV_DTYPES.get(value)
    return Setting(("--kv-cache-dtype", known)) if known else Cannot(f"it knows auto, {', '.join(_KV_DTYPES)}")


class TgiEngine(ServerEngine):
    """Starts ``text-generation-launcher``; it opens its port when the model is loaded and warm."""

    adapter = "tgi"
    Options = TgiOptions
    identity_pages = ("/info",)
    programs = ("text-generation-launcher",)
    spellings: ClassVar[Spellings] = {
        "dtype": _or_auto(one_of(("float16", "bfloat16"), flag("--dtype"))),
        "quantization": one_of(_QUANTIZATIONS, flag("--quantize")),
        "kv_cache_dtype": _or_auto(_kv_cache),
        "max_model_len": _whole,
        "max_num_seqs": flag("--max-batch-size"),
        "max_num_batched_tokens": flag("--max-batch-prefill-tokens"),
        "tensor_parallel_size": flag("--num-shard"),
        "pipeline_parallel_size": lambda value: Setting() if value == 1 else Cannot("it splits tensors only"),
        "enable_prefix_caching": variable("PREFIX_CACHING"),
        "enable_chunked_prefill": variable("PREFILL_CHUNKING"),
        "speculation": _speculate,
        "seed": Cannot("it has a seed for each request only, and none is needed: decoding is greedy"),
        "memory_fraction": flag("--cuda-memory-fraction"),
    }
    key_variable = "API_KEY"
    ready_timeout_s = 900.0
    stop_grace_s = (15.0, 10.0)
    metrics: MetricsSource | None = _METRICS
    notes = (
        "answers end where the model ends them, since their length cannot be forced: compare figures per token",
        "an answer of more than 1,024 tokens is made in pieces; each after the first waits for a prefill of its own",
        "its prefix cache is on unless enable_prefix_caching is false, and cannot be emptied while it runs",
    )

    @classmethod
    def identify(cls, pages: Pages) -> Identity | None:
        """See :class:`~engines.server_engine.ServerEngine`; it has a page of its own."""
        if field_of(pages, "/info", "router") != "text-generation-router":
            return None
        model = str(field_of(pages, "/info", "model_id"))
        return Identity(cls.adapter, (model,), model)

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:
        """The one that the option ``api`` names."""
        return TgiNativeDialect() if setup.options.api == "native" else TgiDialect()

    @classmethod
    def check(cls, setup: Setup) -> None:
        """See :class:`~engines.server_engine.ServerEngine`; a quantised model chooses its own type."""
        super().check(setup)
        spec = setup.spec
        if setup.deployment.url is None and spec.quantization and spec.dtype not in {None, "auto"}:
            raise BadOption(f"engine '{cls.adapter}' takes dtype or quantization, not both; leave one out")

    def command(self) -> Sequence[str]:
        """The launcher: the program that was named, or the one on PATH; on another host it is looked for there."""
        program = self.setup.deployment.program or shutil.which(self.programs[0])
        if program or self.setup.deployment.ssh:
            return (program or self.programs[0],)
        raise NotInstalled(f"{self.programs[0]} is not on PATH; no package brings it: use a container, or give its url")

    def arguments(self, host: str, port: int, model: str) -> Sequence[str]:
        """Where it listens, and what its own default would leave to chance or send to its makers."""
        options: TgiOptions = self.setup.options
        argv = ["--model-id", model, "--hostname", host, "--port", str(port), "--usage-stats", "off"]
        if not (self.setup.deployment.container or self.setup.deployment.ssh):
            argv += ["--prometheus-port", str(pick_port())]  # its second listener, else always 9000
        whole = self.setup.spec.max_model_len
        if whole is not None and options.max_input_tokens is None:
            argv += ["--max-input-tokens", str(whole - 1)]  # its default is refused where it is not below the whole
        return [*argv, *option_argv(msgspec.structs.replace(options, api="native", attention=None))]

    def environ(self) -> dict[str, str]:
        """Nothing is fetched; the kernels of attention are chosen by a variable."""
        attention = self.setup.options.attention
        return {**super().environ(), **({"ATTENTION": attention} if attention else {})}

    async def describe(self, server: Server) -> dict[str, Any]:
        """What ``/info`` says, and the budget of KV tokens that its warm-up found, which ``/info`` lacks."""
        told: dict[str, Any] = await server.get_json("/info") or {}
        _, page = await server.ask("GET", "/metrics")
        found = _BUDGET.search(page)
        return {**told, "max_batch_total_tokens": int(found[1])} if found else told
