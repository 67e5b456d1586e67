"""Run commands and imports in processes without our modules loaded, without starting an interpreter for each.

``python -m tests.fresh imports`` imports each module of the five packages alone and prints a line for each.
``python -m tests.fresh commands`` reads command lines, a JSON list of lists of words, from stdin, runs each in a fork,
and prints a JSON list of their exit status and output.
"""

import dataclasses
import functools
import gc
import importlib
import json
import os
import pkgutil
import sys
import tempfile
import traceback
from collections.abc import Iterable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PACKAGES = tuple(f"bakeoff.{name}" for name in ("engines", "harness", "reference_engine", "results", "workloads"))


def modules(package: str) -> list[str]:
    """Names of a package's modules by its files, without programs, which run when they are imported."""
    folder = SOURCE.joinpath(*package.split("."))
    files = sorted(file for file in folder.rglob("*.py") if file.stem != "__main__")
    return [".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for file in files]


@functools.cache
def is_ours(name: str | None) -> bool:
    return (name or "").partition(".")[0] == "bakeoff"


def warm_up(packages: Iterable[str]) -> None:
    """Import these packages and forget them: the third-party modules that they import stay, and their compiled code."""
    for name in (name for package in packages for name in modules(package)):
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # a command that needs it will say so
    restore({})
    gc.collect()
    gc.freeze()  # forks keep sharing the pages of loaded modules


def import_alone(name: str) -> None:
    """Import a module with only its parents loaded, as any import of it does; then do so for each module below."""
    before = {other: set(vars(module)) for other, module in sys.modules.items() if is_ours(other)}
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        print("failed" if is_ours(error.name) else "lacks", name, error.name)
    except Exception as error:  # noqa: BLE001  (whatever it is, the next module is tried)
        print("failed", name, repr(error))
    else:
        print("imported", name)
        for below in pkgutil.iter_modules(getattr(module, "__path__", ()), f"{name}."):
            if not below.name.endswith(".__main__"):
                import_alone(below.name)
    restore(before)


def restore(before: dict[str, set[str]]) -> None:
    """Forget all our modules except these, and the attributes that these have gained since."""
    for name, module in [(name, module) for name, module in sys.modules.items() if is_ours(name)]:
        if name not in before:
            del sys.modules[name]
            continue
        for attribute in vars(module).keys() - before[name]:
            delattr(module, attribute)


def run_command(words: list[str], output: int) -> NoReturn:
    """Run this command line in this process; ``output`` is the file that receives its stdout and stderr."""
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    sys.argv = ["bakeoff", *words]
    status = 1
    try:
        from bakeoff.harness.entry import main as bakeoff  # noqa: PLC0415  (this import is part of the command)

        bakeoff()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        os._exit(status)


def output_of(words: list[str]) -> tuple[int, str]:
    """Exit status of a command line in a fork, and what it wrote to stdout and stderr."""
    with tempfile.TemporaryFile() as file:
        pid = os.fork()
        if pid == 0:
            run_command(words, file.fileno())
        _, status = os.waitpid(pid, 0)
        file.seek(0)
        return os.waitstatus_to_exitcode(status), file.read().decode()


class OurFinder(MetaPathFinder):
    """Finds our modules without searching each folder on the path, since it is called thousands of times."""

    @staticmethod
    @functools.cache
    def _place(name: str) -> tuple[SourceFileLoader, list[str] | None] | None:
        place = SOURCE.joinpath(*name.split("."))
        package, file = place / "__init__.py", place.with_suffix(".py")
        if package.is_file():
            return SourceFileLoader(name, str(package)), [str(place)]
        return (SourceFileLoader(name, str(file)), None) if file.is_file() else None

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if not is_ours(fullname) or (place := self._place(fullname)) is None:
            return None
        loader, folders = place
        return spec_from_file_location(fullname, loader.path, loader=loader, submodule_search_locations=folders)


def compile_once() -> None:
    """Compile the source of each module, and of each method that ``dataclasses`` writes, for the first import only."""
    SourceFileLoader.get_code = functools.cache(SourceFileLoader.get_code)
    compiled = functools.cache(functools.partial(compile, filename="<string>", mode="exec"))

    def execute(text: str, *namespaces: dict[str, object]) -> None:
        exec(compiled(text), *namespaces)

    dataclasses.exec = execute  # type: ignore[attr-defined]


def main(job: str) -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a fork loses all threads but one
    compile_once()
    if job == "imports":
        sys.meta_path.insert(0, OurFinder())
        import_alone("bakeoff")
    else:
        warm_up(package for package in PACKAGES if package != "bakeoff.reference_engine")
        print(json.dumps([output_of(words) for words in json.load(sys.stdin)]))


if __name__ == "__main__":
    main(sys.argv[1])
