"""The pytest plugin: a fixture that measures engines, and assertions on its results (docs/pytest.md).

Every pytest session in an environment with bakeoff loads it. So it imports only pytest until a test uses the fixture,
its hooks do nothing for other tests, and it uses only names that exist since pytest 7.0: installing bakeoff must not
break an old suite.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bakeoff.harness.testing import Bakeoff, Measured

ENTRY_POINT = "bakeoff"
_RUNS: "pytest.StashKey[list[Measured]]" = pytest.StashKey()
_JSON_LINE = pytest.StashKey[str]()
"""The line about ``--bakeoff-json`` in the terminal summary."""


def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    """Register once, even if loaded both by ``-p bakeoff.harness.pytest_plugin`` and by the entry point."""
    if getattr(plugin, "__name__", None) == __name__:
        for other in {ENTRY_POINT, __name__} - {manager.get_name(plugin)}:
            manager.set_blocked(other)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ``--bakeoff-*`` options."""
    group = parser.getgroup("bakeoff", "engines measured by bakeoff")
    group.addoption("--bakeoff-out", metavar="DIR", default="runs", help="folder for run folders (default: runs)")
    group.addoption(
        "--bakeoff-baseline", metavar="RUN_OR_JSON", action="append", help="baseline of assert_no_regression: a run, "
        "a file of --bakeoff-json, or none for the first run; repeat the option to pool several runs",
    )  # fmt: skip
    group.addoption(
        "--bakeoff-json", metavar="FILE", help="write all runs of the session to FILE, in pytest-benchmark's format"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", "bakeoff(slo): objectives that every run of the test must meet")
    config.stash[_RUNS] = []


@pytest.fixture
def bakeoff(request: pytest.FixtureRequest) -> "Bakeoff":
    """Measure engines: ``run(FILE)``, or ``bench(...)`` for a running server."""
    config = request.config
    if hasattr(config, "workerinput"):
        pytest.fail("other pytest workers would disturb the measurement; run this test with -n 0", pytrace=False)
    from bakeoff.harness.testing import Bakeoff  # noqa: PLC0415

    node = request.node
    return Bakeoff(
        node.name,
        node.nodeid,
        out=Path(str(config.getoption("bakeoff_out"))),
        slo=_slo(node),
        baseline=config.getoption("bakeoff_baseline"),
        runs=config.stash[_RUNS],
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the file of ``--bakeoff-json``; if that fails, so does the session."""
    file, runs = session.config.getoption("bakeoff_json"), session.config.stash[_RUNS]
    if file is None or not runs:
        return
    from bakeoff.results.errors import ResultsError  # noqa: PLC0415
    from bakeoff.results.export.benchmark_json import benchmark_json  # noqa: PLC0415
    from bakeoff.results.files.atomic import write_atomic  # noqa: PLC0415

    try:
        write_atomic(Path(file), benchmark_json({run.title: run.results for run in runs}))
    except ResultsError as error:
        session.config.stash[_JSON_LINE] = str(error)
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
    else:
        session.config.stash[_JSON_LINE] = f"all runs: {file}"


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter", config: pytest.Config) -> None:
    """Print a line for each measured engine and load."""
    runs = config.stash[_RUNS]
    if not runs:
        if config.getoption("bakeoff_json") is not None:
            terminalreporter.write_line(f"bakeoff measured nothing: {config.getoption('bakeoff_json')} was not written")
        return
    from bakeoff.harness.testing import summary  # noqa: PLC0415

    terminalreporter.section("bakeoff")
    for line in (*summary(runs), *(f"bakeoff report {run.path}" for run in runs), config.stash.get(_JSON_LINE, "")):
        if line:
            terminalreporter.write_line(line)


def _slo(node: pytest.Item) -> str | None:
    mark = node.get_closest_marker("bakeoff")
    if mark is None:
        return None
    if mark.args or not mark.kwargs.keys() <= {"slo"}:
        pytest.fail("the mark takes only slo; write bakeoff(slo='ttft_p99<500ms')", pytrace=False)
    return mark.kwargs.get("slo")
