"""Runs tests in forks of this process: once to see which test reaches which line, then once for each changed module.

A fork begins with numpy, scipy and pytest loaded and nothing of ``results``, so it imports the changed text in place of
the module's file; nothing is written. What it has to say is its exit status.
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

_LOADED = ("numpy", "scipy.special", "scipy.stats", "pandas", "psutil", "engines.secrets")
_MOST_MEMORY_BYTES = 8 << 30
"""Address space of a fork: a change may make a loop collect without end."""
_SLOWER, _GRACE_S = 10, 2.0
"""A test may take so many times as long as it does, and so many seconds more; in CPU time, so that the load of the
machine decides nothing."""


class Reached(msgspec.Struct):
    """Which tests reach what, and how long they take.

    Attributes:
        lines: path → line → tests, by pytest's names; an empty name where it is reached by an import.
        seconds: test → duration.
    """

    lines: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    def tests(self, path: Path, lines: tuple[int, int] | None) -> dict[str, float]:
        """Those that reach these lines with their seconds, the fastest first.

        All of them where there are no lines, or an import reaches them: whatever it made may be what a test looks at.
        """
        found = set(self.seconds)
        if lines is not None:
            reached = self.lines.get(str(path.resolve()), {})
            reaching = {test for line in range(lines[0], lines[1] + 1) for test in reached.get(line, [])}
            found = found if "" in reaching else reaching
        return dict(sorted(((test, self.seconds[test]) for test in found), key=operator.itemgetter(1)))


def load() -> None:
    """Import what every fork would: call once, before the first."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each thread takes address space, and a fork has little
    for name in _LOADED:
        importlib.import_module(name)
    hypothesis.settings.register_profile("same", deadline=None, derandomize=True, database=None)
    hypothesis.settings.load_profile("same")
    gc.freeze()  # no fork has to look through all that


def survey(files: Sequence[Path], folders: Sequence[Path]) -> Reached:
    """Run all tests of ``files`` on the code as it is, and see which lines below ``folders`` they reach.

    Raises:
        RuntimeError: a test fails.
    """
    with tempfile.NamedTemporaryFile() as out:
        _, status = os.waitpid(_forked(lambda: _surveyed(files, folders, Path(out.name))), 0)
        if status:
            raise RuntimeError(f"the tests fail as it is: python -m pytest {' '.join(map(str, files))}")
        return msgspec.json.decode(out.read(), type=Reached)


def try_change(path: Path, source: str, tests: Mapping[str, float]) -> int:
    """Begin tests with a module replaced by another text; they stop at the first that fails.

    Args:
        path: the module's file, from the root of the repository.
        source: the other text.
        tests: in their order, with the seconds that each takes.

    Returns:
        the process, which the caller must wait for.
    """

    def work() -> int:
        sys.meta_path.insert(0, _Replaced(".".join(path.with_suffix("").parts), path, source))
        return _pytest(sorted({test.partition("::")[0] for test in tests}), _Chosen(tests)) if tests else 0

    return _forked(work)


def survived(status: int) -> bool:
    """Whether all tests passed, by a fork's wait status. No test at all is as good as passing."""
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}


def _forked(work: Callable[[], int]) -> int:
    """Do some work in a silent fork, which exits with what it returns."""
    pid = os.fork()
    if pid:
        return pid
    status = pytest.ExitCode.INTERNAL_ERROR
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
        status = work()
    finally:
        os._exit(status)


def _pytest(files: Sequence[str], plugin: object) -> int:
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    options = ["-x", "--assert=plain", "--tb=no", "-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin"]
    options += ["--hypothesis-profile=same"]
    return int(pytest.main([*files, *options], plugins=[plugin]))


class _Replaced(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Finds and loads one module, with another text than its file's."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        super().__init__(name, str(path.resolve()))
        self._source = source

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        """Only the one."""
        wanted = fullname == self.name
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self) if wanted else None

    def get_code(self, fullname: str) -> CodeType:
        """The other text's."""
        return compile(self._source, self.get_filename(fullname), "exec", dont_inherit=True)


class _Chosen:
    """Pytest runs these tests in this order, and no others; one that takes far too long ends the process."""

    def __init__(self, tests: Mapping[str, float]) -> None:
        self._tests, self._place = tests, {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._place]
        items[:] = sorted(chosen, key=lambda item: self._place[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        signal.setitimer(signal.ITIMER_PROF, _GRACE_S + _SLOWER * self._tests[nodeid])


class _Watched:
    """Tells coverage which test runs, and keeps the time."""

    def __init__(self, watch: coverage.Coverage, packages: Iterable[str]) -> None:
        self._watch, self._packages = watch, tuple(packages)
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._forget()
        self._watch.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def _forget(self) -> None:
        """What an earlier test left in a cache would hide that this one asks for it too."""
        for name, module in list(sys.modules.items()):
            if name.startswith(self._packages):
                for value in vars(module).values():
                    if hasattr(value, "cache_clear"):
                        value.cache_clear()


def _surveyed(files: Sequence[Path], folders: Sequence[Path], out: Path) -> int:
    watch = coverage.Coverage(data_file=None, config_file=False, include=[f"{folder}/*" for folder in folders])
    watched = _Watched(watch, (".".join(folder.parts) for folder in folders))
    watch.start()
    status = _pytest([str(file) for file in files], watched)
    watch.stop()
    data = watch.get_data()
    lines: dict[str, Any] = {file: data.contexts_by_lineno(file) for file in data.measured_files()}
    out.write_bytes(msgspec.json.encode(Reached(lines, watched.seconds)))
    return status
