"""Memory that the C library holds, by the library's own counts."""

import os
import subprocess
import sys

import numpy as np
import psutil
import pytest
import torch

from bakeoff.reference_engine.engine.memory import FreedMemory
from bakeoff.reference_engine.models.linear import can_pack

COUNT = """
import ctypes, sys, threading
from bakeoff.reference_engine.engine.memory import share_one_arena

libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
if sys.argv[1] == "one":
    assert share_one_arena()
barrier = threading.Barrier(4)

def take():
    barrier.wait()  # all at once, so that none inherits the arena of one that has ended
    libc.malloc(1000)
    barrier.wait()

threads = [threading.Thread(target=take) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[2].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.parametrize(("how", "is_shared"), [("one", True), ("own", False)])
def test_threads_share_an_arena_where_that_is_configured(tmp_path, how: str, is_shared: bool) -> None:
    info = tmp_path / "info.xml"
    subprocess.run([sys.executable, "-c", COUNT, how, str(info)], check=True, timeout=60)
    assert (info.read_text().count("<heap nr=") == 1) is is_shared


MULTIPLY = """
import os, sys
import psutil, torch
from bakeoff.reference_engine.engine.memory import FreedMemory, keep_few_multiplications
from bakeoff.reference_engine.models.linear import PackedLinear

now = [0.0]
freed = FreedMemory(lambda: now[0])
if sys.argv[1] == "few":
    keep_few_multiplications()
multiply = PackedLinear(torch.zeros(512, 512), None)
for rows in range(1, 261):
    multiply(torch.zeros(rows, 512))
before = psutil.Process().memory_info().rss
for rows in range(261, 361):
    multiply(torch.zeros(rows, 512))
now[0] += 2.0
assert freed.give_back()
print(psutil.Process().memory_info().rss - before)
"""


@pytest.mark.nightly
@pytest.mark.skipif(not can_pack(torch.zeros(1, 1)), reason="torch has no oneDNN here, so nothing is kept")
def test_few_compiled_multiplications_are_kept() -> None:
    """360 counts of rows, which would all be kept by default."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("CACHE_CAPACITY")}

    def grown(how: str) -> int:
        argv = [sys.executable, "-c", MULTIPLY, how]
        return int(subprocess.run(argv, check=True, timeout=60, capture_output=True, env=environment).stdout)

    assert grown("few") < grown("all") / 2


def test_what_was_freed_goes_back_every_two_seconds() -> None:
    """Of many small pieces some are freed: holes that the C library keeps and fills again, but never returns."""
    now = [100.0]
    freed = FreedMemory(lambda: now[0])
    pieces = [np.ones(12_000, np.int8) for _ in range(8_000)]
    del pieces[::2], pieces[::2]
    before = psutil.Process().memory_info().rss
    assert not freed.give_back(), "not before its time"
    assert psutil.Process().memory_info().rss > before - (10 << 20)
    now[0] += 2.0
    assert freed.give_back()
    assert psutil.Process().memory_info().rss < before - (20 << 20)
    assert not freed.give_back()
    assert len(pieces) == 2_000
