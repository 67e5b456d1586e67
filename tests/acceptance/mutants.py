"""All mutants of a module that mutmut generates, each as the whole source of the changed module.

mutmut's own runner puts all mutants of a function into one module and switches between them. So it leaves out what it
cannot switch: code outside of functions, and functions with a decorator (caches, properties). Here each mutant is a
source of its own, so both are included. Only ``__all__`` is left out, which nothing but ``import *`` reads. mutmut
itself leaves out annotations, decorators, docstrings, the text of f-strings, and the arguments of ``len`` and
``isinstance``, but not other strings, such as messages.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path

import libcst as cst
import libcst.matchers as m
import msgspec
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import Mutation, MutationVisitor, deep_replace
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

_ALL = m.Assign(targets=[m.AssignTarget(m.Name("__all__"))])


class Mutant(msgspec.Struct, frozen=True):
    """One change of a module.

    Attributes:
        path: of the module.
        line: line of the change.
        lines: first and last line of the body of the function that is changed; None outside of functions.
        source: the whole changed module.
        change: the lines that differ, ``-`` before and ``+`` after.
    """

    path: Path
    line: int
    lines: tuple[int, int] | None
    source: str
    change: str


class _Visitor(MutationVisitor):
    """mutmut's visitor, which here enters decorated functions too."""

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef):
            return False
        return m.matches(node, _ALL) or super()._skip_node_and_children(node)


def mutants(path: Path) -> list[Mutant]:
    """All mutants of a module, by line; mutants with the same source count once."""
    original = path.read_text(encoding="utf-8")
    wrapper = MetadataWrapper(cst.parse_module(original))
    visitor = _Visitor(mutation_operators, IgnoredCode(set(), set(), set()))
    wrapper.visit(visitor)
    positions = wrapper.resolve(PositionProvider)
    by_source: dict[str, Mutant] = {}
    for mutation in visitor.mutations:
        changed = deep_replace(wrapper.module, mutation.original_node, mutation.mutated_node)
        assert isinstance(changed, cst.Module)
        if changed.code != original:
            line, lines = _position(mutation, positions)
            by_source.setdefault(changed.code, Mutant(path, line, lines, changed.code, _change(original, changed.code)))
    return sorted(by_source.values(), key=lambda mutant: mutant.line)


def _position(mutation: Mutation, positions: Mapping[cst.CSTNode, CodeRange]) -> tuple[int, tuple[int, int] | None]:
    function = mutation.contained_by_top_level_function
    lines = None
    if isinstance(function, cst.FunctionDef):
        lines = (positions[function.body].start.line, positions[function.body].end.line)
    return positions[mutation.original_node].start.line, lines


def _change(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))
