"""Adapter of TensorRT-LLM's own server, ``trtllm-serve``.

Written from the source, https://github.com/NVIDIA/TensorRT-LLM; never tested against a running server. Its quirks:

- Some settings are flags and others keys of a YAML file. Releases differ in which takes precedence, so a setting given
  in both is refused.
- Iteration statistics can be read only once, because reading empties their queue; the Prometheus page empties the same
  queue.
- It polls once a second whether a client has disconnected, and decodes until then.
- No call empties the prefix cache.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from bakeoff.engines.base import Setup
from bakeoff.engines.dialects import Dialect, TensorRtLlmDialect
from bakeoff.engines.errors import BadOption, NotInstalled
from bakeoff.engines.launcher import Server
from bakeoff.engines.metrics import DrainedIterations, Histogram, MetricsSource, Prometheus, Series
from bakeoff.engines.server_engine import ServerEngine
from bakeoff.engines.spec import Cannot, Setting, Speculation, Spellings, flag, key, one_of, spelt, switch

_CONFIG = "config.yml"
_FILE_FLAGS = ("--config", "--extra_llm_api_options")
_METHODS = {"ngram": "NGram", "draft": "DraftTarget", "eagle3": "Eagle3", "mtp": "MTP"}
"""TensorRT-LLM's names of speculation methods, by ours."""
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
"""Keys of the configuration file by the equivalent flags."""

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
"""Two metrics are omitted: ``time_per_output_token`` is a mean per request, not a histogram of gaps; the counters of
speculation only see the newest iteration at each collection."""


class TensorRtLlmOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``tensorrt_llm`` adapter."""

    backend: Literal["pytorch", "tensorrt", "_autodeploy"] = "pytorch"
    """Runtime of the model."""
    token_ids: bool = False
    """Request token ids instead of text from completions, for exact counts; chats have no ids."""
    enable_iter_perf_stats: bool | None = None
    """Collect and read statistics of every iteration, which costs the server some work. The default is true for a local
    launch, and false otherwise, because reading takes the statistics away from other readers."""
    return_perf_metrics: bool = False
    """Measure requests in the server, and read its Prometheus page instead of the iterations, since both empty the same
    queue. Its gauges change only when a request ends."""
    config: dict[str, Any] = {}
    """More keys of the configuration file, nested or dotted."""


def _dtype(value: str) -> Setting | Cannot:
    return Setting() if value == "auto" else Cannot(f"the checkpoint sets it; use auto, not {value!r}")


def _speculation(speculation: Speculation) -> Setting | Cannot:
    if speculation.method not in _METHODS:
        return Cannot(f"it knows the methods {', '.join(_METHODS)}, not {speculation.method!r}")
    if speculation.method in _WITH_MODEL and speculation.model is None:
        return Cannot(f"{speculation.method} needs the folder of a draft model, in speculation.model")
    if speculation.method not in _WITH_MODEL and speculation.model is not None:
        return Cannot(f"{speculation.method} takes no draft model")
    config: dict[str, Any] = {"decoding_type": _METHODS[speculation.method], "max_draft_len": speculation.num_tokens}
    if speculation.model is not None:
        config["speculative_model"] = speculation.model
    if speculation.method == "mtp":  # the name in older releases
        config["num_nextn_predict_layers"] = speculation.num_tokens
    return key("speculative_config")(config)


class TensorRtLlmEngine(ServerEngine):
    """Starts ``trtllm-serve MODEL``, which opens its port once the model is loaded."""

    adapter = "tensorrt_llm"
    owned_by = "tensorrt_llm"
    Options = TensorRtLlmOptions
    recipes = ("tensorrt-llm",)
    distributions = ("tensorrt-llm",)
    programs = ("trtllm-serve",)
    needs_gpu = True
    spellings: ClassVar[Spellings] = {
        "dtype": _dtype,
        "quantization": Cannot("the checkpoint sets it"),
        "kv_cache_dtype": one_of(("auto", "fp8", "nvfp4"), key("kv_cache_config.dtype")),
        "max_model_len": flag("--max_seq_len"),
        "max_num_seqs": flag("--max_batch_size"),
        "max_num_batched_tokens": flag("--max_num_tokens"),
        "tensor_parallel_size": flag("--tp_size"),
        "pipeline_parallel_size": flag("--pp_size"),
        "enable_prefix_caching": key("kv_cache_config.enable_block_reuse"),
        "enable_chunked_prefill": switch("--enable_chunked_prefill"),  # the default is off
        "speculation": _speculation,
        "seed": Cannot("it has no engine-wide seed, and greedy decoding needs none"),
        "memory_fraction": flag("--kv_cache_free_gpu_memory_fraction"),
        "cpu_offload_gb": Cannot("trtllm-serve has no flag for it"),
    }
    container_command = ("trtllm-serve",)
    ready_timeout_s = 1800.0  # a large model is loaded, autotuned and captured in graphs
    stop_grace_s = (20.0, 10.0)  # its workers are MPI processes

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:
        """TensorRT-LLM's dialect."""
        return TensorRtLlmDialect(token_ids=setup.options.token_ids)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Also check the options against the configuration file.

        Raises:
            BadOption: as there; or the configuration file is impossible, as for :meth:`_file_config`.
        """
        super().check(setup)
        if setup.deployment.address is None:
            cls._file_config(setup)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._config: dict[str, Any] = {} if self.url else self._file_config(setup)
        self.metrics = _metrics(setup)
        self.notes = tuple(_notes(setup))

    def command(self) -> Sequence[str]:
        """The configured program, or the console script of its environment."""
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
        """Model, address and backend, and the configuration file unless it is empty."""
        where = (model, "--host", host, "--port", str(port), "--backend", self.setup.options.backend)
        return (*where, "--config", f"{{file:{_CONFIG}}}") if self._config else where

    def files(self) -> dict[str, str]:
        """The configuration file in JSON, which is valid YAML."""
        return {_CONFIG: msgspec.json.format(msgspec.json.encode(self._config)).decode()} if self._config else {}

    async def describe(self, server: Server) -> dict[str, Any]:
        """Version, ``/server_info`` and configuration file. Reads no statistics, because that would consume them."""
        version: Mapping[str, Any] = await server.get_json("/version") or {}
        models: Mapping[str, Any] = await server.get_json("/v1/models") or {}
        description = {
            "version": version.get("version") or self.installed_version(),
            "server_info": await server.get_json("/server_info"),
            "models": [model.get("id") for model in models.get("data") or ()],
            "config": self._config,
        }
        return {name: value for name, value in description.items() if value not in (None, {}, [])}

    @classmethod
    def _file_config(cls, setup: Setup) -> dict[str, Any]:
        """Content of the configuration file, as nested keys.

        Raises:
            BadOption: a setting is given twice, there is another configuration file, or the file is needed over ssh.
        """
        setting = spelt(setup.spec, cls.spellings, cls.adapter)
        config = dict(_leaves({**setting.config, **_observed(setup)}))
        words = [word.partition("=")[0] for word in (*setting.argv, "--backend", *setup.deployment.args)]
        by_flag = {_FLAGS[word] for word in words if word in _FLAGS}
        for name, value in _leaves(setup.options.config):
            if any(_is_within(name, other) or _is_within(other, name) for other in (*config, *by_flag)):
                raise BadOption(f"engine '{cls.adapter}': config.{name} is set elsewhere, too; set it once")
            config[name] = value
        own_file = next((word for word in words if word in _FILE_FLAGS), None)
        needs_file = f"engine '{cls.adapter}': {', '.join(config)} needs a configuration file"
        if config and setup.deployment.ssh:
            remedy = "leave it out, or name a file on that host in args: --config PATH"
            raise BadOption(f"{needs_file}, which is not copied over ssh; {remedy}")
        if config and own_file:
            raise BadOption(f"{needs_file} besides that of {own_file}; use the option config instead")
        return _nested(config)


def _observes(setup: Setup) -> bool:
    """Whether iteration statistics are collected and read."""
    enabled: bool | None = setup.options.enable_iter_perf_stats
    return enabled if enabled is not None else not (setup.deployment.address or setup.deployment.ssh)


def _observed(setup: Setup) -> dict[str, bool]:
    switches = {"enable_iter_perf_stats": _observes(setup), "return_perf_metrics": setup.options.return_perf_metrics}
    return {name: value for name, value in switches.items() if value}


def _metrics(setup: Setup) -> MetricsSource | None:
    if setup.options.return_perf_metrics:
        return REQUEST_METRICS
    return DrainedIterations() if _observes(setup) else None


def _notes(setup: Setup) -> Iterator[str]:
    spec = setup.spec
    if setup.deployment.address:
        yield "it runs already: block reuse, chunked prefill and memory fraction are as it was started"
    elif spec.enable_prefix_caching is not False:
        yield "block reuse is on and no call empties it: only prompts with new text keep a trial cold"
    if spec.enable_chunked_prefill is None and not setup.deployment.address:
        yield "chunked prefill is off unless enable_chunked_prefill says so; vLLM has it on"
    if spec.memory_fraction is not None:
        yield "memory_fraction is of the GPU memory that is free after loading the model; vLLM's is of the total"
    if _observes(setup):
        yield "it collects statistics of every iteration, which costs work; only one reader gets them"
    yield "it looks once a second whether a client has hung up, and decodes on until then"


def _leaves(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its full name, dotted for nesting."""
    for name, value in config.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _is_within(name: str, other: str) -> bool:
    return f"{name}.".startswith(f"{other}.")


def _nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for name, value in leaves.items():
        *above, last = name.split(".")
        table = root
        for part in above:
            table = table.setdefault(part, {})
        table[last] = value
    return root
