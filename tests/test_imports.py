"""No package has modules that import each other in a circle, not even for type checking or inside functions."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"


def import_graph(package: str) -> dict[str, set[str]]:
    """Modules of a package, and which of them each imports."""
    modules: dict[str, Path] = {}
    for path in SOURCE.joinpath(*package.split(".")).rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        graph[name] = {target for target in imported(tree, modules) if target in modules and target != name}
    return graph


def imported(tree: ast.Module, modules: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in modules else node.module


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Groups of modules each of which reaches all others: strongly connected components (Tarjan, 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    components: list[set[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for target in graph[module]:
            if target not in order:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], order[target])
        if lowest[module] == order[module]:
            start = stack.index(module)
            if len(stack) - start > 1:
                components.append(set(stack[start:]))
            del stack[start:]

    for module in graph:
        if module not in order:
            visit(module)
    return components


@pytest.mark.parametrize("package", ["harness", "engines", "workloads", "reference_engine", "results"])
def test_no_modules_import_each_other(package: str):
    assert circles(import_graph(f"bakeoff.{package}")) == []


def test_a_circle_is_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str]()}
    assert circles(graph) == [{"b", "c"}]
