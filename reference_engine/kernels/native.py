"""Compiles C++ sources for this processor, once, and opens them; also finds out whether Triton works for a GPU.

The library is in the cache folder under a name that identifies source, flags and processor, so that another machine
with the same home directory compiles its own. It is linked with the OpenMP that torch has already loaded: a second one
would keep a second set of threads, and the two sets would wait for each other.
"""

import ctypes
import functools
import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

POINTER, LONG, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
"""Argument types of the compiled functions."""

_log = logging.getLogger(__name__)

_FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC",
    # Sums may be computed in any order; infinities are kept.
    "-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno",
)  # fmt: skip
_TIMEOUT_S = 120


@functools.cache
def library(source: str) -> ctypes.CDLL | None:
    """The compiled functions of a file beside this one; None, with a line in the log, if they cannot be compiled.

    ``BAKEOFF_KERNELS=torch`` in the environment compiles nothing.
    """
    if not _may_compile():
        return None
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        _log.info("no C++ compiler here: stock torch operators are used; install g++ for faster decoding on the CPU")
        return None
    try:
        return ctypes.CDLL(str(_compiled(compiler, Path(__file__).with_name(source))))
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("%s cannot be compiled here, stock torch operators are used: %s", source, error)
        return None


@functools.cache
def has_triton(device: torch.device) -> bool:
    """Whether the Triton kernels run on the device; see `library` for how to do without them."""
    return device.type == "cuda" and _may_compile() and importlib.util.find_spec("triton") is not None


def _may_compile() -> bool:
    return os.environ.get("BAKEOFF_KERNELS") != "torch"


def _compiled(compiler: str, source: Path) -> Path:
    key = hashlib.blake2b(digest_size=12)
    headers = [header.read_bytes() for header in sorted(source.parent.glob("*.h"))]
    for part in (source.read_bytes(), *headers, " ".join(_FLAGS).encode(), _processor().encode()):
        key.update(part)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bakeoff" / "kernels"
    target = folder / f"{source.stem}-{key.hexdigest()}.so"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        library = Path(scratch) / target.name
        command = [compiler, *_FLAGS, str(source), "-o", str(library)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
        library.replace(target)  # atomic, even if another process compiles at the same time
    return target


def _processor() -> str:
    """Identifies the processor as `-march=native` sees it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
