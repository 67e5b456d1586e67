"""Runs a command on a disk that is small or read-only: a tmpfs in a mount namespace, which ends with the process.

    unshare --mount … python -m tests.acceptance.small_disk ORDER

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

from bakeoff.results.errors import RunUnreadable
from bakeoff.results.log.store import runs_below

SIZE_BYTES = 16 << 20


class Disk(msgspec.Struct, frozen=True):
    """A disk, and the command to run on it.

    Attributes:
        earlier: folder of a run that is copied to the disk first.
        argv: the command; ``DISK`` in it stands for the disk's folder.
        free_bytes: free space on the disk; None makes it read-only.
    """

    earlier: str
    argv: list[str]
    free_bytes: int | None


class Outcome(msgspec.Struct, frozen=True):
    """The result of the command.

    Attributes:
        code: its exit status.
        stderr: its error output.
        untouched: whether the earlier run's folder holds the same files with the same bytes.
        readable: number of readable exchanges that the command recorded; None if a log cannot be read.
    """

    code: int
    stderr: str
    untouched: bool
    readable: int | None


def run_on_disk(disk: Disk) -> Outcome:
    """Run the command on the disk."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    argv = [*unshare, sys.executable, "-m", "tests.acceptance.small_disk", msgspec.json.encode(disk).decode()]
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
