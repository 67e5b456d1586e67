"""Whether an engine ended for lack of memory: by its own word in the log, or by the kernel's hand."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_WORDS = re.compile(
    r"\bOutOfMemory|CUDA out of memory|(failed|error): out of memory|\bMemoryError\b|bad_alloc|ErrorOutOf\w*Memory"
    r"|can('|no)t allocate memory|not enough memory: you tried|failed to allocate|memory allocation of \d+ bytes failed"
    r"|No available memory for the cache blocks",
    re.IGNORECASE,
)
"""How torch, Python, CUDA, C++, Vulkan, Linux, ggml, Rust and vLLM say it; warnings that only speak of it do not."""
REMEDY = "lower memory_fraction, max_model_len or max_num_seqs, or take a smaller model"


def complaint(lines: Sequence[str]) -> str | None:
    """The last line that says that memory ran out; None where none does."""
    return next((line.strip() for line in reversed(lines) if _WORDS.search(line)), None)


def kernel_kills(root: Path = Path("/")) -> int:
    """How many processes the kernel has killed for lack of memory so far, in our own control group where that counts.

    Args:
        root: of the file system.
    """
    for path in (*_of_our_group(root), root / "proc/vmstat"):
        counts = dict(line.split()[:2] for line in _lines(path) if len(line.split()) >= 2)
        if "oom_kill" in counts:
            return int(counts["oom_kill"])
    return 0


def _of_our_group(root: Path) -> Iterable[Path]:
    """Where version 2 of control groups counts, and where version 1 does."""
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
