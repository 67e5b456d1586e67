"""Detection of out-of-memory ends, from the log or the kernel's counter."""

from pathlib import Path

import pytest

from bakeoff.engines.memory import error_line, kernel_kills

ERROR_LINES = [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.57 GiB",
    "RuntimeError: CUDA error: out of memory",
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 91 MiB on device 0: cudaMalloc failed: out of memory",
    "ggml_backend_alloc_ctx_tensors_from_buft: failed to allocate CPU buffer of size 34359738400",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory",
    "RuntimeError: not enough memory: you tried to allocate 34359738368 bytes.",
    "MemoryError",
    "OSError: [Errno 12] Cannot allocate memory",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "memory allocation of 34359738368 bytes failed",
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
]


@pytest.mark.parametrize("line", ERROR_LINES)
def test_out_of_memory_messages_of_engines_are_recognised(line: str) -> None:
    assert error_line(["loading", f"  {line}", "RuntimeError: Engine core initialization failed."]) == line


@pytest.mark.parametrize(
    "line",
    [
        "Available memory for KV cache: 2.1 GiB",
        "expandable_segments may help to avoid out of memory errors",
        "Free memory: 1 GiB",
        "assertion failed",
    ],
)
def test_other_messages_about_memory_are_not_recognised(line: str) -> None:
    assert error_line(["loading", line]) is None


def test_the_last_complaint_counts() -> None:
    assert error_line(["MemoryError: first", "MemoryError: second", "bye"]) == "MemoryError: second"


@pytest.mark.parametrize(
    ("own", "place", "text"),
    [
        ("0::/user.slice/mine\n", "sys/fs/cgroup/user.slice/mine/memory.events", "low 0\noom 3\noom_kill 2\n"),
        ("4:memory:/mine\n1:cpu:/\n", "sys/fs/cgroup/memory/mine/memory.oom_control", "under_oom 0\noom_kill 2\n"),
        ("0::/\n", "proc/vmstat", "nr_free_pages 12\noom_kill 2\n"),
    ],
    ids=["version 2", "version 1", "without groups"],
)
def test_the_kernel_counts_in_our_own_group_where_it_can(tmp_path: Path, own: str, place: str, text: str) -> None:
    for name, content in (("proc/vmstat", "oom_kill 99\n"), ("proc/self/cgroup", own), (place, text)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert kernel_kills(tmp_path) == 2


def test_a_machine_that_does_not_count_has_killed_nothing(tmp_path: Path) -> None:
    assert kernel_kills(tmp_path) == 0
