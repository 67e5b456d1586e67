"""A disk of our own that is small or read-only: a tmpfs in a mount namespace, which ends with the process in it.

    unshare --mount … python -m benchmarks.small_disk ORDER

Needs Linux and either root or user namespaces. ``ORDER`` is JSON of :class:`Disk`.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from results.errors import RunUnreadable
from results.store import runs_below

SIZE_BYTES = 16 << 20


class Disk(msgspec.Struct, frozen=True):
    """What to try.

    Attributes:
        earlier: a run that is on the disk already.
        argv: the command; ``DISK`` in it stands for the disk's folder.
        free_bytes: space that is left on it; None for a disk that is read-only.
    """

    earlier: str
    argv: list[str]
    free_bytes: int | None


class Outcome(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        code: exit status of the command.
        stderr: what it said.
        untouched: whether every byte of the earlier run is still there, and nothing else in its folder.
        readable: exchanges that can be read of what it began, and None if some log of it cannot be.
    """

    code: int
    stderr: str
    untouched: bool
    readable: int | None


def tried(disk: Disk) -> Outcome:
    """Run the command on such a disk."""
    alone = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    argv = [*alone, sys.executable, "-m", "benchmarks.small_disk", msgspec.json.encode(disk).decode()]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return msgspec.json.decode(done.stdout, type=Outcome)


def digests(folder: Path) -> dict[str, str]:
    """Path → SHA-256 of every file below ``folder``."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _readable(runs: Path) -> int | None:
    try:
        return sum(1 for run in runs_below(runs) for trial in run.trials() for _ in trial.read_streams())
    except RunUnreadable:
        return None


def _mount(*options: str) -> None:
    subprocess.run(["mount", *options], check=True)


def main() -> None:
    disk = msgspec.json.decode(sys.argv[1], type=Disk)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _mount("--types", "tmpfs", "--options", f"size={SIZE_BYTES}", "tmpfs", name)
        earlier = shutil.copytree(disk.earlier, folder / "runs" / "earlier")
        before, read_before = digests(earlier), _readable(folder / "runs") or 0
        if disk.free_bytes is None:
            _mount("--options", "remount,ro", name)
        else:
            (folder / "ballast").write_bytes(bytes(shutil.disk_usage(folder).free - disk.free_bytes))
        argv = [word.replace("DISK", name) for word in disk.argv]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        read = _readable(folder / "runs")
        outcome = Outcome(
            done.returncode, done.stderr, digests(earlier) == before, None if read is None else read - read_before
        )
        subprocess.run(["umount", name], check=True)
    print(msgspec.json.encode(outcome).decode())


if __name__ == "__main__":
    main()
