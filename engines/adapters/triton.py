"""Adapter of Triton with TensorRT-LLM's models: a running server, or one started on an existing model repository.

Source: https://github.com/triton-inference-server/tensorrtllm_backend. Its quirks: the model repository holds all
engine settings, so the shared settings are refused; metrics have a port of their own; streams carry neither token
counts nor an end mark.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from bakeoff.engines.base import Setup
from bakeoff.engines.dialects import Dialect, TritonDialect
from bakeoff.engines.dialects.triton import Fields
from bakeoff.engines.errors import BadOption, ModelNotFound
from bakeoff.engines.identity import Identity, Pages, field_of
from bakeoff.engines.launcher import Launch, Server, pick_port
from bakeoff.engines.metrics import Prometheus, Series
from bakeoff.engines.server_engine import ServerEngine
from bakeoff.engines.spec import Cannot, Spellings

_METRICS_PORT = 8002
"""Triton's default."""
_MODELS: dict[Fields, str] = {"ensemble": "ensemble", "llm-api": "tensorrt_llm"}
"""Usual names of the model in the repository."""
_REQUESTS, _BLOCKS = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"


def _in_the_repository(names: str) -> Cannot:
    return Cannot(f"the model repository sets it ({names})")


class TritonOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``triton`` adapter."""

    fields: Fields = "ensemble"
    """Naming scheme of request fields: of ``ensemble`` and ``tensorrt_llm_bls``, or of the ``llm-api`` model."""
    model_name: str | None = None
    """Name of the model in Triton's repository; the default is ``ensemble``, or ``tensorrt_llm`` with the LLM API."""
    cumulative: bool | None = None
    """Whether events repeat the whole answer so far: the LLM API does, ``tensorrt_llm_bls`` if configured so."""
    model_repository: str | None = None
    """Folder of the models; required to start Triton."""
    metrics_port: int | None = None
    """Port of its metrics: by default 8002 at an address, and a free port for a local process. In a container or over
    ssh metrics are read only if it is set, because only the request port is published; publish it in args."""


class TritonEngine(ServerEngine):
    """Starts ``tritonserver`` as a configured program, in a container or over ssh; it is not searched for."""

    adapter = "triton"
    Options = TritonOptions
    identity_pages = ("/v2", *(f"/v2/models/{name}/config" for name in _MODELS.values()))
    programs = ("tritonserver",)
    needs_gpu = True
    spellings: ClassVar[Spellings] = {
        "dtype": _in_the_repository("the engine or checkpoint decides it"),
        "quantization": _in_the_repository("the engine or checkpoint decides it"),
        "kv_cache_dtype": _in_the_repository("the engine or model.yaml"),
        "max_model_len": _in_the_repository("max_seq_len of the engine or of model.yaml"),
        "max_num_seqs": _in_the_repository("max_batch_size"),
        "max_num_batched_tokens": _in_the_repository("max_num_tokens of the engine or of model.yaml"),
        "tensor_parallel_size": _in_the_repository("the engine or model.yaml; mpirun starts several ranks"),
        "pipeline_parallel_size": _in_the_repository("the engine or model.yaml; mpirun starts several ranks"),
        "enable_prefix_caching": _in_the_repository("enable_kv_cache_reuse"),
        "enable_chunked_prefill": _in_the_repository("enable_chunked_context"),
        "speculation": _in_the_repository("decoding_mode, or speculative_config of model.yaml"),
        "seed": Cannot("it has no engine-wide seed, and greedy decoding needs none"),
        "memory_fraction": _in_the_repository("kv_cache_free_gpu_mem_fraction"),
        "cpu_offload_gb": _in_the_repository("gpu_weights_percent"),
    }
    container_command = ("tritonserver",)
    ready_path = "/v2/health/ready"
    ready_timeout_s = 1800.0
    stop_grace_s = (35.0, 10.0)  # it waits 30 s for its models to unload

    @classmethod
    def identify(cls, pages: Pages) -> Identity | None:
        """The loaded model's name implies the fields."""
        if field_of(pages, "/v2", "name") != "triton":
            return None
        loaded = ((fields, name) for fields, name in _MODELS.items() if f"/v2/models/{name}/config" in pages)
        fields, name = next(loaded, (None, None))
        return Identity(cls.adapter, (name,), options={"fields": fields}) if name else Identity(cls.adapter, ())

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:
        """Triton's dialect."""
        options: TritonOptions = setup.options
        return TritonDialect(options.fields, cumulative=options.cumulative)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Also require a model repository, and a program to launch.

        Raises:
            BadOption: as there; or program, container and ssh, or the model repository, are missing.
        """
        super().check(setup)
        deployment = setup.deployment
        if deployment.address:
            return
        if not (deployment.program or deployment.container or deployment.ssh):
            raise BadOption(f"engine '{cls.adapter}' needs a way to start; set program, container or ssh, or give url")
        if setup.options.model_repository is None and not (deployment.ssh and deployment.ssh.model_path):
            raise BadOption(f"engine '{cls.adapter}' starts on a model repository; set options.model_repository")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        options: TritonOptions = setup.options
        self.model_id: str = setup.deployment.served_model_name or options.model_name or _MODELS[options.fields]
        self._metrics_port = options.metrics_port or (_METRICS_PORT if self.url else None)
        self.metrics = _metrics(self._metrics_port) if self._metrics_port else None
        self.notes = tuple(_notes(options))

    def command(self) -> Sequence[str]:
        """The configured program; over ssh, by default the one on PATH there."""
        return (self.setup.deployment.program or "tritonserver",)

    def model_file(self) -> str:
        """Folder of the model repository, instead of a checkpoint.

        Raises:
            ModelNotFound: the folder does not exist.
        """
        repository: str | None = self.setup.options.model_repository
        if remote := self.setup.deployment.ssh:
            return remote.model_path or repository or ""
        place = Path(repository or "").expanduser().absolute()
        if not place.is_dir():
            raise ModelNotFound(f"{place} is not a folder; set options.model_repository to Triton's model repository")
        return str(place)

    def launch(self, port: int) -> Launch | None:
        """Also picks a port for metrics."""
        deployment = self.setup.deployment
        if not (self.url or deployment.container or deployment.ssh):
            metrics_port = pick_port(self.setup.options.metrics_port)
            self._metrics_port = metrics_port if metrics_port != port else pick_port()
            self.metrics = _metrics(self._metrics_port)
        return super().launch(port)

    def arguments(self, host: str, port: int, model: str) -> Sequence[str]:
        """Repository, address and ports; gRPC is disabled."""
        elsewhere = self.setup.deployment.container or self.setup.deployment.ssh
        metrics_port = _METRICS_PORT if elsewhere or not self._metrics_port else self._metrics_port
        where = ("--model-repository", model, "--http-address", host, "--http-port", str(port))
        return (*where, "--metrics-port", str(metrics_port), "--allow-grpc", "false")

    async def describe(self, server: Server) -> dict[str, Any]:
        """Triton's version and the configuration of its model."""
        metadata = await server.get_json("/v2") or {}
        config = await server.get_json(f"/v2/models/{self.model_id}/config")
        fields = {"version": metadata.get("version"), "model_config": config}
        return {name: value for name, value in fields.items() if value is not None}


def _metrics(port: int) -> Prometheus:
    """Gauges only. Triton's "active" includes waiting requests, so "scheduled" is the running ones."""
    values = {
        "running": (Series(_REQUESTS, {"request_type": "scheduled"}),),
        "waiting": (Series(_REQUESTS, {"request_type": "waiting"}),),
        "kv_usage_share": (Series(_BLOCKS, {"kv_cache_block_type": "fraction"}),),
    }
    return Prometheus(values, port=port)


def _notes(options: TritonOptions) -> Iterator[str]:
    yield "it tells neither counts nor ids of tokens: they are counted by the model's tokenizer, chunk by chunk"
    yield "its stream has no end mark: an answer whose connection was closed in order counts as whole"
    yield "block reuse, chunking and its share of memory are as its model repository says; no call empties its cache"
    if options.fields == "llm-api":
        yield "the length of its answers cannot be forced"
