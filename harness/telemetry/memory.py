"""Memory of the engine's processes with each page counted once, which costs a walk through their page tables."""

from pathlib import Path

import psutil

from results.records import TelemetryRecord

_SIZES = {"Pss:": "pss_bytes", "Rss:": "rss_bytes"}


def shared_memory(t_ns: int, pid: int, proc: Path = Path("/proc")) -> TelemetryRecord:
    """``pss_bytes``: each page divided by the number of processes that map it; ``rss_bytes``: of the same instant.

    Read when the load is over: the kernel holds each process's memory map meanwhile.

    Args:
        t_ns: of the reading.
        pid: root of the engine's process tree.
        proc: where the kernel's files are.
    """
    try:
        root = psutil.Process(pid)
        tree = [pid, *(child.pid for child in root.children(recursive=True))]
        read = [sizes for process in tree if (sizes := _sizes(proc / str(process) / "smaps_rollup"))]
        if not read:
            raise FileNotFoundError(f"the kernel has no smaps_rollup of process {pid}")
    except (OSError, psutil.Error) as error:
        names = list(_SIZES.values())
        return TelemetryRecord(t_ns, "memory", dict.fromkeys(names), dict.fromkeys(names, str(error)))
    return TelemetryRecord(t_ns, "memory", {name: sum(sizes[name] for sizes in read) for name in _SIZES.values()})


def _sizes(rollup: Path) -> dict[str, int] | None:
    """Bytes by our names; None of a process that has ended.

    Raises:
        PermissionError: it is another user's.
    """
    try:
        lines = [line.split() for line in rollup.read_text(encoding="ascii").splitlines()]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return {_SIZES[name]: int(size) * 1024 for name, size, *_ in lines if name in _SIZES} or None
