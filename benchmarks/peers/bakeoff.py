"""Our own client, under the same conditions as the others."""

import sys
from pathlib import Path

import msgspec

from benchmarks.peers.protocol import Figures, Load


class Bakeoff:
    """A worker, which sets its own real-time priority and measures, and a parent, which sleeps during the load."""

    name = "bakeoff"
    alone = False
    slow = False

    def command(self, load: Load, folder: Path) -> list[str]:
        """Run the driver."""
        shape = ["--rate", f"{load.rate_per_s:g}"] if load.rate_per_s else ["--concurrency", str(load.concurrency)]
        return [
            sys.executable, "-m", "benchmarks.peers.drivers.bakeoff",
            "--base-url", load.base_url, "--tokenizer", str(load.tokenizer), "--folder", str(folder),
            "--endpoint", load.endpoint, "--requests", str(load.requests),
            "--input-tokens", str(load.input_tokens), "--output-tokens", str(load.output_tokens),
            *shape,
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """No variables."""
        return {}

    def figures(self, load: Load, folder: Path) -> Figures:  # noqa: ARG002  (others need it)
        """Read the driver's file."""
        return msgspec.json.decode((folder / "result.json").read_bytes(), type=Figures)
