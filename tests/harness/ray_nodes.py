"""A Ray cluster of several nodes on this machine, each at a loopback address of its own; for tests and benchmarks."""

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

OBJECT_STORE_BYTES = 80 << 20
"""Ray's minimum is 75 MB."""


@contextlib.contextmanager
def ray_nodes(count: int = 2, *, cpus: int = 2) -> Iterator[Any]:
    """Run a cluster for the duration of the block.

    Args:
        count: nodes.
        cpus: number of CPUs that each node declares to Ray.

    Yields:
        Ray's handle of it, with its ``address`` and its nodes.
    """
    folder = tempfile.mkdtemp(prefix="ray-")  # a short path, because Ray keeps sockets in it
    settings = {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"}
    previous = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    from ray.cluster_utils import Cluster  # noqa: PLC0415  (an extra)

    logging.getLogger("ray").setLevel(logging.ERROR)
    cluster = Cluster(shutdown_at_exit=False)
    try:
        for number in range(count):
            # 127.0.0.2 and up: Ray takes 127.0.0.1 for "this machine" and would listen on its external address
            address = f"127.0.0.{number + 2}"
            head = {"include_dashboard": False} if number == 0 else {}
            cluster.add_node(
                num_cpus=cpus, object_store_memory=OBJECT_STORE_BYTES, node_ip_address=address, **head
            )  # fmt: skip
        yield cluster
    finally:
        cluster.shutdown()
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)
