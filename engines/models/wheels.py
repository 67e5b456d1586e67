"""Download of wheels from a package index, with resumption and a pinned hash; no other module downloads.

pip resolves the URL (``--dry-run --report``), so the machine's mirrors, proxies and find-links apply, and this project
names no host.
"""

import hashlib
import http.client
import importlib.util
import json
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from bakeoff.engines.errors import FetchFailed, NotInstalled
from bakeoff.installation import how_to_install

Progress = Callable[[int, int | None], None]
"""Called with the bytes downloaded so far and the total (None if unknown)."""
_BLOCK_BYTES = 1 << 20


def fetch_wheel(requirement: str, sha256: str, target: Path, progress: Progress) -> None:
    """Download the wheel of ``requirement`` (``name==version``) to ``target``.

    A ``.part`` file beside it keeps received bytes, so an interrupted download resumes.

    Raises:
        FetchFailed: no index answers, the download was interrupted, or the hash differs from the pinned one.
    """
    if target.exists() and file_sha256(target) == sha256:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    download(locate_wheel(requirement), part, progress)
    actual = file_sha256(part)
    if actual != sha256:
        part.unlink()
        raise FetchFailed(
            f"{requirement} has sha256 {actual} instead of the pinned {sha256}; check your package index and try again"
        )
    part.rename(target)


def locate_wheel(requirement: str) -> str:
    """The URL of a requirement's wheel, as pip resolves it, without installing it.

    Raises:
        FetchFailed: pip cannot resolve it.
        NotInstalled: there is no pip.
    """
    if importlib.util.find_spec("pip") is None:  # environments of uv have none
        raise NotInstalled("fetching a model needs pip", how_to_install("engine"))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        argv = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
        process = subprocess.run(
            [*argv, "--report", str(report), requirement], capture_output=True, text=True, check=False
        )
        if process.returncode != 0:
            last = (process.stderr.strip().splitlines() or ["no message"])[-1]
            raise FetchFailed(f"pip cannot find {requirement} ({last}); check that a package index is reachable")
        return json.loads(report.read_bytes())["install"][0]["download_info"]["url"]


def download(url: str, part: Path, progress: Progress) -> None:
    """Append to ``part`` the missing bytes of ``url`` (``https``, or ``file`` from a find-links folder).

    Raises:
        FetchFailed: the connection failed; received bytes are kept.
    """
    if urllib.parse.urlsplit(url).scheme not in {"https", "http", "file"}:
        raise FetchFailed(
            f"pip gave a URL that is neither https nor file ({url.partition(':')[0]}); check pip's index URL"
        )
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(  # noqa: S310  (the scheme was checked above)
        url, headers={"Range": f"bytes={have}-"} if have else {}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            resumed = have > 0 and answer.status == 206
            have = have if resumed else 0
            length = answer.headers.get("Content-Length")
            total = have + int(length) if length else None
            with part.open("ab" if resumed else "wb") as file:
                while block := answer.read(_BLOCK_BYTES):
                    file.write(block)
                    have += len(block)
                    progress(have, total)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the part is complete; its hash is checked later
            return
        raise FetchFailed(f"download failed with HTTP {error.code}; try again later") from error
    except (OSError, http.client.HTTPException) as error:
        raise FetchFailed(
            f"download broke off after {have} bytes ({error}); run the command again to resume"
        ) from error
    if total is not None and have < total:
        raise FetchFailed(f"download broke off after {have} of {total} bytes; run the command again to resume")


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
