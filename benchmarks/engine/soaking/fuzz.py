"""Schemathesis beside the users: requests made from the server's own description, right and wrong ones."""

import asyncio
import re
from pathlib import Path

from benchmarks.peers.install import executable, install

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "negative_data_rejection", "unsupported_method",
)  # fmt: skip


async def fuzz(url: str, seconds: float, seed: int, patience_s: float, folder: Path) -> tuple[int, str]:
    """Run it; returns its exit status, 0 where it found nothing, and the last part of what it says.

    Args:
        url: of the server.
        seconds: for how long it sends.
        seed: of what it sends.
        patience_s: for one answer.
        folder: to run in; it leaves files there.
    """
    await asyncio.to_thread(install, "schemathesis")
    process = await asyncio.create_subprocess_exec(
        executable("schemathesis", "schemathesis"), "run", f"{url}/openapi.json", "--checks", ",".join(CHECKS),
        "--phases", "examples,coverage,fuzzing", "--max-time", f"{max(1, round(seconds))}", "--seed", f"{seed}",
        "--request-timeout", f"{patience_s}", "--generation-database", "none", "--continue-on-failure", "--no-color",
        cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    told, _ = await process.communicate()
    text = told.decode(errors="replace")
    found = re.search(r"^=+ (FAILURES|ERRORS) =+$", text, re.MULTILINE)
    return process.returncode or 0, text[found.start() if found else text.rfind("= SUMMARY ") :]
