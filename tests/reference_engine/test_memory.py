"""One arena for all threads: counted where the C library counts them."""

import subprocess
import sys

import pytest

COUNT = """
import ctypes, sys, threading
from reference_engine.memory import share_one_arena

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
for one in threads: one.start()
for one in threads: one.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[2].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.parametrize(("how", "one"), [("one", True), ("own", False)])
def test_threads_share_an_arena_where_they_are_told(tmp_path, how: str, one: bool) -> None:
    info = tmp_path / "info.xml"
    subprocess.run([sys.executable, "-c", COUNT, how, str(info)], check=True, timeout=60)
    assert (info.read_text().count("<heap nr=") == 1) is one
