"""The pytest plugin: a fixture that measures engines, and assertions on what it measured (docs/pytest.md).

It is loaded into every pytest session on a machine that has bakeoff, so nothing but pytest is imported before a test
uses the fixture, and no hook does anything for tests that do not. It names only what pytest has had since 7.0:
an old suite must not break for having bakeoff beside it.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.testing import Bakeoff, Measured

ENTRY_POINT = "bakeoff"
_RUNS: "pytest.StashKey[list[Measured]]" = pytest.StashKey()
_WRITTEN = pytest.StashKey[str]()


def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    """Loaded as ``-p harness.pytest_plugin`` and by its entry point, it is registered once."""
    if getattr(plugin, "__name__", None) == __name__:
        for other in {ENTRY_POINT, __name__} - {manager.get_name(plugin)}:
            manager.set_blocked(other)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("bakeoff", "engines measured by bakeoff")
    group.addoption("--bakeoff-out", metavar="DIR", default="runs", help="folder for run folders (default: runs)")
    group.addoption(
        "--bakeoff-baseline", metavar="RUN_OR_JSON", action="append", help="what assert_no_regression "
        "compares with: a run, a file of --bakeoff-json, or none for the first run; several are one of several runs",
    )  # fmt: skip
    group.addoption(
        "--bakeoff-json", metavar="FILE", help="write all runs of the session there, as pytest-benchmark does"
    )


def pytest_configure(config: pytest.Config) -> None:
    """The mark."""
    config.addinivalue_line("markers", "bakeoff(slo): objectives that every run of the test must meet")
    config.stash[_RUNS] = []


@pytest.fixture
def bakeoff(request: pytest.FixtureRequest) -> "Bakeoff":
    """Measures engines: ``run(FILE)``, or ``bench(...)`` for a server that runs already."""
    config = request.config
    if hasattr(config, "workerinput"):
        pytest.fail("bakeoff measures alone, other workers would be in its way: run this test with -n 0", pytrace=False)
    from harness.shadowing import shadowed  # noqa: PLC0415

    if complaint := shadowed():
        pytest.fail(f"bakeoff: {complaint}", pytrace=False)
    from harness.testing import Bakeoff  # noqa: PLC0415

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
    """Write the file of ``--bakeoff-json``; a session that cannot has failed."""
    file, runs = session.config.getoption("bakeoff_json"), session.config.stash[_RUNS]
    if file is None or not runs:
        return
    from results.atomic import write_atomic  # noqa: PLC0415
    from results.benchmark_json import benchmark_json  # noqa: PLC0415
    from results.errors import ResultsError  # noqa: PLC0415

    try:
        write_atomic(Path(file), benchmark_json({run.title: run.results for run in runs}))
    except ResultsError as error:
        session.config.stash[_WRITTEN] = str(error)
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
    else:
        session.config.stash[_WRITTEN] = f"all runs: {file}"


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter", config: pytest.Config) -> None:
    """What was measured."""
    runs = config.stash[_RUNS]
    if not runs:
        if config.getoption("bakeoff_json") is not None:
            terminalreporter.write_line(f"bakeoff measured nothing: {config.getoption('bakeoff_json')} was not written")
        return
    from harness.testing import summary  # noqa: PLC0415

    terminalreporter.section("bakeoff")
    for line in (*summary(runs), *(f"bakeoff report {run.path}" for run in runs), config.stash.get(_WRITTEN, "")):
        if line:
            terminalreporter.write_line(line)


def _slo(node: pytest.Item) -> str | None:
    mark = node.get_closest_marker("bakeoff")
    if mark is None:
        return None
    if mark.args or not mark.kwargs.keys() <= {"slo"}:
        pytest.fail("the mark is bakeoff(slo='ttft_p99<500ms'), and takes nothing else", pytrace=False)
    return mark.kwargs.get("slo")
