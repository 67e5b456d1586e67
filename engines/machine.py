"""Detect NVIDIA GPUs and container runtimes."""

import functools
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import msgspec
import pynvml

RUNTIMES = ("docker", "podman")
_ASK_S = 5.0


class Gpus(msgspec.Struct, frozen=True):
    """The GPUs of this machine.

    Attributes:
        names: one name per GPU.
        reason: why there are none.
    """

    names: tuple[str, ...] = ()
    reason: str | None = None


class Runtime(msgspec.Struct, frozen=True):
    """A program that runs containers.

    Attributes:
        name: ``docker`` or ``podman``.
        version: of the daemon or client that runs containers; None if unusable.
        reason: why it is unusable.
    """

    name: str
    version: str | None = None
    reason: str | None = None


class Machine(msgspec.Struct, frozen=True):
    """GPUs and container runtimes of this machine."""

    gpus: Gpus
    runtimes: tuple[Runtime, ...]


def machine() -> Machine:
    """Inspect this machine; waits up to 5 s for Docker's daemon."""
    return Machine(gpus(), tuple(runtime(name) for name in RUNTIMES))


def gpus(nvml: Any = pynvml) -> Gpus:  # noqa: ANN401  (a module, or a fake)
    """The NVIDIA GPUs that NVML sees.

    Args:
        nvml: the NVML binding; tests pass a fake.
    """
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        names = tuple(_text(nvml.nvmlDeviceGetName(handle)) for handle in handles)
    except pynvml.NVMLError as error:
        return Gpus(reason=f"NVML is not available: {error}")
    return Gpus(names, None if names else "NVML sees no GPU")


@functools.cache
def has_gpu() -> bool:
    """Whether there is an NVIDIA GPU; cached."""
    return bool(gpus().names)


def runtime(name: str, which: Callable[[str], str | None] = shutil.which) -> Runtime:
    """Version of ``docker`` or ``podman``, or why it is unusable."""
    if which(name) is None:
        return Runtime(name, reason="it is not on PATH")
    field = "{{.Server.Version}}" if name == "docker" else "{{.Client.Version}}"
    argv = [name, "version", "--format", field]
    try:
        process = subprocess.run(argv, capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Runtime(name, reason=f"it does not answer ({type(error).__name__})")
    version = process.stdout.strip()
    if process.returncode != 0 or not version:
        lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
        return Runtime(name, reason=lines[-1] if lines else "it does not answer")
    return Runtime(name, version)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
