"""Ceilings of the amount of code: ``python -m tests.ceilings`` fails if a count has risen above its ceiling.

A code line is one that holds code: no blank line, comment, docstring or import. A fragment is a description of an
argument or attribute that begins with a preposition ("of the run") where a noun phrase should stand. The ceilings
stand in ``pyproject.toml``; raising one takes a commit of its own, which says what was considered for removal.
"""

import ast
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
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


def counts(package: str) -> dict[str, int]:
    """The counts that have ceilings, of one package."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / package).rglob("*.py"))]
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


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def main() -> int:
    """Print what is above its ceiling; the exit status."""
    ceilings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ceilings"]
    lines = list(broken(ceilings))
    for line in lines:
        print(line)
    if lines:
        print(
            "remove code first; a commit that raises a ceiling in pyproject.toml says what was considered for removal"
        )
    return min(1, len(lines))


if __name__ == "__main__":
    sys.exit(main())
