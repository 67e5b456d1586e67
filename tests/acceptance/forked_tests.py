"""Runs tests in forks of this process: once to record which test executes which lines, then once for each mutant.

A fork starts with numpy, scipy and pytest imported but nothing of ``results``, so that it imports a mutant's source
instead of the module's file; no file is written. A fork's exit status is its result.
"""

import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import operator
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import coverage
import hypothesis
import msgspec
import pytest

_LOADED = ("numpy", "scipy.special", "scipy.stats", "pandas", "psutil", "bakeoff.engines.secrets")
_MAX_MEMORY_BYTES = 8 << 30
"""Address space of a fork: a mutant may make a loop allocate without end."""
_SLOWDOWN_LIMIT, _GRACE_S = 10, 2.0
"""Factor on a test's normal duration, and seconds on top, after which it is killed. The timer counts CPU time, so that
the machine's load does not matter."""


class LineCoverage(msgspec.Struct):
    """Which tests execute which lines, and how long each test takes.

    Attributes:
        lines: path → line → node ids of tests; an empty id if an import executes the line.
        seconds: node id → duration.
    """

    lines: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    def tests(self, path: Path, lines: tuple[int, int] | None) -> dict[str, float]:
        """The tests that execute these lines, with their durations in seconds, fastest first.

        All tests if ``lines`` is None or an import executes one of them: any test may depend on what an import defines.
        """
        tests = set(self.seconds)
        if lines is not None:
            tests_by_line = self.lines.get(str(path.resolve()), {})
            executing = {test for line in range(lines[0], lines[1] + 1) for test in tests_by_line.get(line, [])}
            tests = tests if "" in executing else executing
        return dict(sorted(((test, self.seconds[test]) for test in tests), key=operator.itemgetter(1)))


def load() -> None:
    """Import what every fork needs. Call it once, before the first fork."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads take address space, which is limited in a fork
    for name in _LOADED:
        importlib.import_module(name)
    hypothesis.settings.register_profile("same", deadline=None, derandomize=True, database=None)
    hypothesis.settings.load_profile("same")
    gc.freeze()  # the forks' collections skip these objects


def survey(files: Sequence[Path], folders: Sequence[Path]) -> LineCoverage:
    """Run all tests of ``files`` on the unchanged code, and record which lines below ``folders`` they execute.

    Raises:
        RuntimeError: a test fails.
    """
    with tempfile.NamedTemporaryFile() as out:
        _, status = os.waitpid(_fork(lambda: _record(files, folders, Path(out.name))), 0)
        if status:
            raise RuntimeError(f"the tests fail as it is: python -m pytest {' '.join(map(str, files))}")
        return msgspec.json.decode(out.read(), type=LineCoverage)


def try_change(path: Path, source: str, tests: Mapping[str, float]) -> int:
    """Start tests with a module's source replaced; they stop at the first failure.

    Args:
        path: the module's file, relative to the root of the repository.
        source: the replacement.
        tests: node id → normal duration in seconds, in the order in which to run them.

    Returns:
        id of the process, for which the caller must wait.
    """

    def work() -> int:
        sys.meta_path.insert(0, _ReplacedModule(".".join(("bakeoff", *path.with_suffix("").parts)), path, source))
        return _pytest(sorted({test.partition("::")[0] for test in tests}), _TestSelection(tests)) if tests else 0

    return _fork(work)


def survived(status: int) -> bool:
    """Whether all tests passed, from a fork's wait status; also true if there was no test."""
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}


def _fork(work: Callable[[], int]) -> int:
    """Call ``work`` in a fork without input or output; its return value is the exit status."""
    pid = os.fork()
    if pid:
        return pid
    status = pytest.ExitCode.INTERNAL_ERROR
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
        status = work()
    finally:
        os._exit(status)


def _pytest(files: Sequence[str], plugin: object) -> int:
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    options = ["-x", "--assert=plain", "--tb=no", "-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin"]
    options += ["--hypothesis-profile=same"]
    return int(pytest.main([*files, *options], plugins=[plugin]))


class _ReplacedModule(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Finds one module and loads it from another source than its file."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        super().__init__(name, str(path.resolve()))
        self._source = source

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        """Find this module and no other."""
        is_replaced = fullname == self.name
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self) if is_replaced else None

    def get_code(self, fullname: str) -> CodeType:
        """Compile the replacement."""
        return compile(self._source, self.get_filename(fullname), "exec", dont_inherit=True)


class _TestSelection:
    """Pytest plugin that runs only these tests, in this order, and ends the process if one takes far too long."""

    def __init__(self, tests: Mapping[str, float]) -> None:
        self._tests, self._order = tests, {test: number for number, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        selected = [item for item in items if item.nodeid in self._order]
        items[:] = sorted(selected, key=lambda item: self._order[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        signal.setitimer(signal.ITIMER_PROF, _GRACE_S + _SLOWDOWN_LIMIT * self._tests[nodeid])


class _Recorder:
    """Pytest plugin that tells coverage which test runs, and records durations."""

    def __init__(self, measurement: coverage.Coverage, packages: Iterable[str]) -> None:
        self._measurement, self._packages = measurement, tuple(packages)
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._clear_caches()
        self._measurement.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def _clear_caches(self) -> None:
        """Clear the functions' caches: a result cached by an earlier test would hide the lines that this test needs."""
        for name, module in list(sys.modules.items()):
            if name.startswith(self._packages):
                for value in vars(module).values():
                    if hasattr(value, "cache_clear"):
                        value.cache_clear()


def _record(files: Sequence[Path], folders: Sequence[Path], out: Path) -> int:
    measurement = coverage.Coverage(data_file=None, config_file=False, include=[f"{folder}/*" for folder in folders])
    recorder = _Recorder(measurement, (".".join(("bakeoff", *folder.parts)) for folder in folders))
    measurement.start()
    status = _pytest([str(file) for file in files], recorder)
    measurement.stop()
    data = measurement.get_data()
    lines: dict[str, Any] = {file: data.contexts_by_lineno(file) for file in data.measured_files()}
    out.write_bytes(msgspec.json.encode(LineCoverage(lines, recorder.seconds)))
    return status
