"""Runs Schemathesis beside the users: valid and invalid requests generated from the server's OpenAPI document."""

import asyncio
import re
from pathlib import Path

from benchmarks.peers.install import executable, install

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "negative_data_rejection", "unsupported_method",
)  # fmt: skip


async def fuzz(url: str, seconds: float, seed: int, timeout_s: float, folder: Path) -> tuple[int, str]:
    """Run Schemathesis; returns its exit status, which is 0 if all checks pass, and the end of its output.

    Args:
        url: of the server.
        seconds: how long it sends requests.
        seed: of the generated requests.
        timeout_s: of one request.
        folder: its working directory, in which it leaves files.
    """
    await asyncio.to_thread(install, "schemathesis")
    process = await asyncio.create_subprocess_exec(
        executable("schemathesis", "schemathesis"), "run", f"{url}/openapi.json", "--checks", ",".join(CHECKS),
        "--phases", "examples,coverage,fuzzing", "--max-time", f"{max(1, round(seconds))}", "--seed", f"{seed}",
        "--request-timeout", f"{timeout_s}", "--generation-database", "none", "--continue-on-failure", "--no-color",
        cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    text = output.decode(errors="replace")
    failures = re.search(r"^=+ (FAILURES|ERRORS) =+$", text, re.MULTILINE)
    return process.returncode or 0, text[failures.start() if failures else text.rfind("= SUMMARY ") :]
