"""TensorRT-LLM's own server, ``trtllm-serve``. Written from its sources; none was seen.

Half of its settings are flags and half are keys of a YAML file. Releases differ in which of the two stands above the
other, so nothing is said in both.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from engines.base import Setup
from engines.dialects import Dialect, TensorRtLlmDialect
from engines.errors import BadOption, NotInstalled
from engines.launcher import Server
from engines.metrics import DrainedIterations, Histogram, MetricsSource, Prometheus, Series
from engines.server_engine import ServerEngine
from engines.spec import Cannot, Setting, Speculation, Spellings, flag, key, one_of, spelt, switch

_CONFIG = "config.yml"
_FILE_FLAGS = ("--config", "--extra_llm_api_options")
_METHODS = {"ngram": "NGram", "draft": "DraftTarget", "eagle3": "Eagle3", "mtp": "MTP"}
"""Its names of speculation, by ours."""
_WITH_MODEL = ("draft", "eagle3")
_FLAGS = {
    "--backend": "backend",
    "--tp_size": "tensor_parallel_size",
    "--pp_size": "pipeline_parallel_size",
    "--max_batch_size": "max_batch_size",
    "--max_num_tokens": "max_num_tokens",
    "--max_seq_len": "max_seq_len",
    "--kv_cache_free_gpu_memory_fraction": "kv_cache_config.free_gpu_memory_fraction",
    "--enable_chunked_prefill": "enable_chunked_prefill",
}
"""Key of the file by the flag that says the same."""

REQUEST_METRICS = Prometheus(
    path="/prometheus/metrics",
    values={
        "running": (Series("trtllm_num_requests_running"),),
        "waiting": (Series("trtllm_num_requests_waiting"),),
        "kv_usage_share": (Series("trtllm_kv_cache_utilization"),),
        "prefix_queries_tokens_total": (Series("trtllm_prompt_tokens_total"),),
        "prefix_hits_tokens_total": (Series("trtllm_prompt_cached_tokens_total"),),
        "prompt_tokens_total": (Series("trtllm_prompt_tokens_total"),),
        "output_tokens_total": (Series("trtllm_generation_tokens_total"),),
    },
    histograms={
        "ttft_s": Histogram("trtllm_time_to_first_token_seconds"),
        "e2e_s": Histogram("trtllm_e2e_request_latency_seconds"),
        "queue_s": Histogram("trtllm_request_queue_time_seconds"),
        "prefill_s": Histogram("trtllm_request_prefill_time_seconds"),
        "decode_s": Histogram("trtllm_request_decode_time_seconds"),
    },
)
"""Two things are left out. ``time_per_output_token`` is one mean for each request, no histogram of the gaps. And the
counters of speculation take in only the newest iteration of each time that the server's collector looks."""


class TensorRtLlmOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``tensorrt_llm`` adapter."""

    backend: Literal["pytorch", "tensorrt", "_autodeploy"] = "pytorch"
    """What runs the model."""
    token_ids: bool = False
    """Ask completions for token ids instead of text: exact counts, no text. Chats have no ids."""
    enable_iter_perf_stats: bool | None = None
    """Collect statistics of every iteration, which is work for the server, and read them. The default is to where it
    is started here; at an address it is not to, because reading takes them from whoever else reads."""
    return_perf_metrics: bool = False
    """Measure every request in the server too, and read its Prometheus page instead of the iterations: both empty the
    same queue. Its gauges change only when a request ends."""
    config: dict[str, Any] = {}
    """More keys of the configuration file, nested or with dots."""


def _dtype(value: str) -> Setting | Cannot:
    return Setting() if value == "auto" else Cannot(f"the checkpoint decides it, which knows auto, not {value!r}")


def _speculation(wanted: Speculation) -> Setting | Cannot:
    if wanted.method not in _METHODS:
        return Cannot(f"it knows the methods {', '.join(_METHODS)}, not {wanted.method!r}")
    if wanted.method in _WITH_MODEL and wanted.model is None:
        return Cannot(f"{wanted.method} needs the folder of a draft model, in speculation.model")
    if wanted.method not in _WITH_MODEL and wanted.model is not None:
        return Cannot(f"{wanted.method} takes no draft model")
    config: dict[str, Any] = {"decoding_type": _METHODS[wanted.method], "max_draft_len": wanted.num_tokens}
    if wanted.model is not None:
        config["speculative_model"] = wanted.model
    if wanted.method == "mtp":  # the older name, from which older releases take the length
        config["num_nextn_predict_layers"] = wanted.num_tokens
    return key("speculative_config")(config)


class TensorRtLlmEngine(ServerEngine):
    """Starts ``trtllm-serve MODEL``; it listens once the model is loaded."""

    adapter = "tensorrt_llm"
    owned_by = "tensorrt_llm"
    Options = TensorRtLlmOptions
    recipes = ("tensorrt-llm",)
    distributions = ("tensorrt-llm",)
    programs = ("trtllm-serve",)
    needs_gpu = True
    spellings: ClassVar[Spellings] = {
        "dtype": _dtype,
        "quantization": Cannot("it comes from the checkpoint"),
        "kv_cache_dtype": one_of(("auto", "fp8", "nvfp4"), key("kv_cache_config.dtype")),
        "max_model_len": flag("--max_seq_len"),
        "max_num_seqs": flag("--max_batch_size"),
        "max_num_batched_tokens": flag("--max_num_tokens"),
        "tensor_parallel_size": flag("--tp_size"),
        "pipeline_parallel_size": flag("--pp_size"),
        "enable_prefix_caching": key("kv_cache_config.enable_block_reuse"),
        "enable_chunked_prefill": switch("--enable_chunked_prefill"),  # off without
        "speculation": _speculation,
        "seed": Cannot("it has no seed of its own, and requests ask for greedy decoding"),
        "memory_fraction": flag("--kv_cache_free_gpu_memory_fraction"),
    }
    container_command = ("trtllm-serve",)
    ready_timeout_s = 1800.0  # loading, autotuning and capturing graphs of a large model
    stop_grace_s = (20.0, 10.0)  # its workers are processes of MPI

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:
        """Its own."""
        return TensorRtLlmDialect(token_ids=setup.options.token_ids)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """See :class:`~engines.server_engine.ServerEngine`.

        Raises:
            BadOption: as there; or a setting is said twice, or cannot be told by file.
        """
        super().check(setup)
        if setup.deployment.url is None:
            cls._told_by_file(setup)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._config: dict[str, Any] = {} if self.url else self._told_by_file(setup)
        self.metrics = _metrics(setup)
        self.notes = tuple(_notes(setup))

    def command(self) -> Sequence[str]:
        """The console script of its environment."""
        deployment = self.setup.deployment
        if deployment.program:
            return (deployment.program,)
        if deployment.ssh:
            return ("trtllm-serve",)
        program = self.environment().program("trtllm-serve")
        if not program.exists():
            raise NotInstalled(f"{program} does not exist", f"bakeoff engines install {self.recipes[0]}")
        return (str(program),)

    def arguments(self, host: str, port: int, model: str) -> Sequence[str]:
        """The model, where to listen, and the configuration file where it holds anything."""
        where = (model, "--host", host, "--port", str(port), "--backend", self.setup.options.backend)
        return (*where, "--config", f"{{file:{_CONFIG}}}") if self._config else where

    def files(self) -> dict[str, str]:
        """The configuration file: JSON, which YAML includes."""
        return {_CONFIG: msgspec.json.format(msgspec.json.encode(self._config)).decode()} if self._config else {}

    async def describe(self, server: Server) -> dict[str, Any]:
        """Its version, what it says of itself, and what it was told by file. Its statistics are left alone."""
        told: Mapping[str, Any] = await server.get_json("/version") or {}
        models: Mapping[str, Any] = await server.get_json("/v1/models") or {}
        found = {
            "version": told.get("version") or self.installed_version(),
            "server_info": await server.get_json("/server_info"),
            "models": [model.get("id") for model in models.get("data") or ()],
            "config": self._config,
        }
        return {name: value for name, value in found.items() if value not in (None, {}, [])}

    @classmethod
    def _told_by_file(cls, setup: Setup) -> dict[str, Any]:
        """The keys of the configuration file, nested.

        Raises:
            BadOption: one is said twice, or there would have to be two files, or one on another host.
        """
        told = spelt(setup.spec, cls.spellings, cls.adapter)
        config = dict(_leaves({**told.config, **_observed(setup)}))
        words = [word.partition("=")[0] for word in (*told.argv, "--backend", *setup.deployment.args)]
        by_flag = {_FLAGS[word] for word in words if word in _FLAGS}
        for name, value in _leaves(setup.options.config):
            if any(_is_within(name, other) or _is_within(other, name) for other in (*config, *by_flag)):
                raise BadOption(f"engine '{cls.adapter}': config.{name} is said elsewhere already; say it once")
            config[name] = value
        own_file = next((word for word in words if word in _FILE_FLAGS), None)
        stands = f"engine '{cls.adapter}': {', '.join(config)} stands in a file"
        if config and setup.deployment.ssh:
            remedy = "leave it out, or name a file there in args: --config PATH"
            raise BadOption(f"{stands}, which ssh does not carry; {remedy}")
        if config and own_file:
            raise BadOption(f"{stands} beside that of {own_file}; use the option config instead")
        return _nested(config)


def _observes(setup: Setup) -> bool:
    """Whether its iterations are counted and read."""
    asked: bool | None = setup.options.enable_iter_perf_stats
    return asked if asked is not None else not (setup.deployment.url or setup.deployment.ssh)


def _observed(setup: Setup) -> dict[str, bool]:
    wanted = {"enable_iter_perf_stats": _observes(setup), "return_perf_metrics": setup.options.return_perf_metrics}
    return {name: value for name, value in wanted.items() if value}


def _metrics(setup: Setup) -> MetricsSource | None:
    if setup.options.return_perf_metrics:
        return REQUEST_METRICS
    return DrainedIterations() if _observes(setup) else None


def _notes(setup: Setup) -> Iterator[str]:
    spec = setup.spec
    if setup.deployment.url:
        yield "it runs already: block reuse, chunked prefill and its share of memory are as somebody started it"
    elif spec.enable_prefix_caching is not False:
        yield "block reuse is on and no call empties it: only prompts in new words keep a trial cold"
    if spec.enable_chunked_prefill is None and not setup.deployment.url:
        yield "chunked prefill is off unless enable_chunked_prefill says so; vLLM has it on"
    if spec.memory_fraction is not None:
        yield "memory_fraction is of the GPU memory that is free once the model is loaded; vLLM's is of all of it"
    if _observes(setup):
        yield "it collects statistics of every iteration, which is work; reading takes them away, so nobody else may"
    yield "it looks once a second whether a client has hung up, and decodes on until then"


def _leaves(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its whole name, dots for nesting."""
    for name, value in config.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _is_within(name: str, other: str) -> bool:
    return f"{name}.".startswith(f"{other}.")


def _nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for name, value in leaves.items():
        *above, last = name.split(".")
        place = whole
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    return whole
