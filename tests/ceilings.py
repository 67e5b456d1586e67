"""Ceilings of the amount of code: ``python -m tests.ceilings`` fails if a count has risen above its ceiling.

A code line is one that holds code: no blank line, comment, docstring or import. A fragment is a description of an
argument or attribute that begins with a preposition ("of the run") where a noun phrase should stand. The ceilings
stand in ``pyproject.toml``; raising one takes a commit of its own, which says what was considered for removal.

What is public is documented once: an implementation needs no docstring if what it implements has one.
"""

import ast
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONG_FILE, LONG_FUNCTION = 400, 60
"""Lines, blank ones and comments included, above which a file or a function counts as long."""
_FRAGMENT = re.compile(
    r"^ +[\w*]+: (?:above|as|at|behind|below|beside|by|for|from|in|inside|into|of|on|over|to|under|with|within)\b",
    re.MULTILINE,
)
_LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(text: str) -> int:
    """Number of code lines of a module."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(_lines(node))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            left_out.update(_lines(node))  # docstrings, those of attributes included
    held: set[int] = set()
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type not in _LAYOUT:
            held.update(range(token.start[0], token.end[0] + 1))
    return len(held - left_out)


def long_functions(text: str) -> int:
    """Number of a module's functions of more than :data:`LONG_FUNCTION` lines."""
    functions = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return sum(len(_lines(function)) > LONG_FUNCTION for function in functions)


def fragments(text: str) -> int:
    """Number of descriptions in a module's docstrings that begin with a preposition."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    documented = (node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds))
    return sum(len(_FRAGMENT.findall(ast.get_docstring(node) or "")) for node in documented)


def undocumented(texts: Mapping[str, str]) -> Iterator[str]:
    """A line for each public function without a docstring whose name no other one documents.

    Args:
        texts: modules by their path.
    """
    trees = {path: ast.parse(text) for path, text in texts.items()}
    functions = [
        (path, node)
        for path, tree in trees.items()
        for owner in ast.walk(tree)
        if isinstance(owner, ast.Module | ast.ClassDef) and not getattr(owner, "name", "").startswith("_")
        for node in owner.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    documented = {node.name for _, node in functions if ast.get_docstring(node)}
    for path, node in functions:
        if not (node.name.startswith("_") or node.name in documented):
            yield f"{path}:{node.lineno}: {node.name} has no docstring, nor has anything that it implements"


def counts(package: str) -> dict[str, int]:
    """The counts that have ceilings, of one package."""
    texts = list(modules(package).values())
    return {
        "code_lines": sum(map(code_lines, texts)),
        "long_files": sum(text.count("\n") > LONG_FILE for text in texts),
        "long_functions": sum(map(long_functions, texts)),
        "fragments": sum(map(fragments, texts)),
    }


def broken(ceilings: dict[str, dict[str, int]]) -> Iterator[str]:
    """A line for each count above its ceiling."""
    for package, limits in ceilings.items():
        for name, count in counts(package).items():
            if count > limits[name]:
                yield f"{package}: {count:,} {name.replace('_', ' ')}, {count - limits[name]:,} above the ceiling"


def modules(*packages: str) -> dict[str, str]:
    """The text of each module, by its path."""
    paths = (path for package in packages for path in sorted((ROOT / package).rglob("*.py")))
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def main() -> int:
    """Print what is above its ceiling; the exit status."""
    ceilings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ceilings"]
    lines, bare = list(broken(ceilings)), list(undocumented(modules(*ceilings)))
    for line in (*bare, *lines):
        print(line)
    if lines:
        print(
            "remove code first; a commit that raises a ceiling in pyproject.toml says what was considered for removal"
        )
    return min(1, len(lines) + len(bare))


if __name__ == "__main__":
    sys.exit(main())
