"""How long the threads of a parallel loop wait for each other before they sleep."""

import os

_SPINS = "10000"  # 0.1 to 0.5 ms by processor


def spin_briefly() -> None:
    """Let threads that wait at the end of a parallel loop give their core away after a fraction of a millisecond.

    GNU's OpenMP looks 300,000 times, for milliseconds, whether the others have arrived. Where another process takes a
    core, the thread that it displaced waits for the scheduler's next slice in each of a step's hundreds of loops, while
    its siblings keep the other cores from it: beside a process with two busy threads on two cores, a decode step took
    1,200 ms instead of 12, and with this 12. Settings of the environment have precedence. Call it before torch is
    imported, or before processes start that import it.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
