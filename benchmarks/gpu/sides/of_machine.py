"""The ceilings of the device that the engines run on; answers any job with them."""

from typing import Any

import torch

from bakeoff.harness.host.ceilings import measure
from benchmarks.gpu.sides.side import Run, serve


def load(_: str, options: dict[str, Any]) -> Run:
    on_gpu = options["device"] != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")

    def run(_prompts: list[list[int]], _output: int) -> dict[str, Any]:
        ceilings = measure(device, options["seconds"])
        return {
            "name": ceilings.name,
            "bytes_per_s": max(ceilings.read_bytes_per_s, ceilings.copy_bytes_per_s),
            "flops_per_s": ceilings.flops_per_s.get(options["dtype"], ceilings.flops_per_s["float32"]),
        }

    return run


if __name__ == "__main__":
    serve(load)
