"""Helpers for tests of llama.cpp's adapters: a model folder, engines, launches and environments."""

import sys
from pathlib import Path
from typing import Any

from bakeoff.engines import Deployment, EngineSpec, Launch, Model, engine
from tests.engines.models.gguf_heads import gguf_head

PROGRAM = "/opt/llama-server"
CANNOT = {"quantization", "memory_fraction", "cpu_offload_gb"}


def model_in(folder: Path) -> Model:
    """A checkpoint folder with a bf16 GGUF."""
    gguf_head(folder / "model-bf16.gguf", 32)
    (folder / "model.safetensors").touch()
    return Model("smol", str(folder), "0" * 64)


def made(model: Model, adapter: str = "llama_cpp", deployment: Deployment | None = None, **settings: Any) -> Any:
    """An engine with settings of either kind; without a deployment it gets a program."""
    spec = {name: value for name, value in settings.items() if name in EngineSpec.__struct_fields__}
    own = {name: value for name, value in settings.items() if name not in spec}
    return engine(adapter, model, own, EngineSpec(**spec), deployment or Deployment(program=PROGRAM))


def launch(model: Model, adapter: str = "llama_cpp", deployment: Deployment | None = None, **settings: Any) -> Launch:
    """The command that would start it."""
    command = made(model, adapter, deployment, **settings).launch(9000)
    assert command is not None
    return command


def environment(folder: Path, package: str, version: str) -> str:
    """A venv that holds one package."""
    info = folder / f"lib/python3.11/site-packages/{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    return str(folder)
