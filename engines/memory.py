"""Detect that an engine ran out of memory, from its log or the kernel's counters."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_MESSAGES = re.compile(
    r"\bOutOfMemory|CUDA out of memory|(failed|error): out of memory|\bMemoryError\b|bad_alloc|ErrorOutOf\w*Memory"
    r"|can('|no)t allocate memory|not enough memory: you tried|failed to allocate|memory allocation of \d+ bytes failed"
    r"|No available memory for the cache blocks",
    re.IGNORECASE,
)
"""Errors of torch, Python, CUDA, C++, Vulkan, Linux, ggml, Rust and vLLM; warnings about memory do not match."""
REMEDY = "lower memory_fraction, max_model_len or max_num_seqs, or take a smaller model"


def error_line(lines: Sequence[str]) -> str | None:
    """The last line that reports running out of memory; None without one."""
    return next((line.strip() for line in reversed(lines) if _MESSAGES.search(line)), None)


def kernel_kills(root: Path = Path("/")) -> int:
    """Number of processes that the kernel has killed for lack of memory, in this control group if it counts them.

    Args:
        root: of the file system.
    """
    for path in (*_of_our_group(root), root / "proc/vmstat"):
        counts = dict(line.split()[:2] for line in _lines(path) if len(line.split()) >= 2)
        if "oom_kill" in counts:
            return int(counts["oom_kill"])
    return 0


def _of_our_group(root: Path) -> Iterable[Path]:
    """Counter files of control groups version 2 and version 1."""
    groups = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield groups / path.lstrip("/") / "memory.events"
        elif controllers == "memory":
            yield groups / "memory" / path.lstrip("/") / "memory.oom_control"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
