"""The folders of tests mirror those of the packages, and only `bakeoff` can be imported."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("harness", "engines", "workloads", "reference_engine", "results")


def files_of(package: str) -> list[Path]:
    return sorted((ROOT / "tests" / package).rglob("test_*.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_the_tests_of_a_folder_are_in_the_same_folder(package: str):
    folders = {str(test.parent.relative_to(ROOT / "tests")) for test in files_of(package)}
    assert {folder for folder in folders if not (ROOT / folder / "__init__.py").is_file()} == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_the_test_of_a_module_is_beside_its_namesake(package: str):
    """A test may be named after a behaviour; if it is named after one module alone, it is where that module is."""
    places: dict[str, list[Path]] = {}
    for file in (ROOT / package).rglob("*.py"):
        places.setdefault(file.stem, []).append(file.parent.relative_to(ROOT))
    misplaced = {
        str(test.relative_to(ROOT))
        for test in files_of(package)
        if len(places.get(test.stem.removeprefix("test_"), ())) == 1
        and [test.parent.relative_to(ROOT / "tests")] != places[test.stem.removeprefix("test_")]
    }
    assert misplaced == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_each_folder_has_one_import_name(package: str):
    spec = importlib.util.find_spec(f"bakeoff.{package}")
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).resolve() == ROOT / package / "__init__.py"
    code = f"import importlib.util; print(importlib.util.find_spec('{package}'))"
    found = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=ROOT / "docs", capture_output=True, text=True, check=True
    )
    assert found.stdout == "None\n"


def test_no_benchmark_imports_a_test_and_no_test_a_benchmark():
    """Acceptance programs and the tests of benchmarks themselves are excepted."""
    importing = {
        str(file.relative_to(ROOT))
        for folder, other in (("benchmarks", "tests"), ("tests", "benchmarks"))
        for file in (ROOT / folder).rglob("*.py")
        if file.relative_to(ROOT).parts[:2] not in {("tests", "acceptance"), ("tests", "benchmarks")}
        if re.search(rf"(?m)^\s*(from|import) {other}\b", file.read_text(encoding="utf-8"))
    }
    assert importing == set()
