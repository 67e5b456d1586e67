"""The counter behind the ceilings of the amount of code."""

from tests.ceilings import broken, code_lines, counts, fragments, long_functions, undocumented

MODULE = '''"""A module
of two lines."""

import os
from sys import (
    path,
)

# A comment.
LIMIT = 3
"""What it limits."""


def f(
    a: int,
) -> str:
    """Doubles."""
    text = """one
    two"""

    return text * a  # twice
'''


def test_code_lines_are_those_that_hold_code():
    assert code_lines(MODULE) == 7  # LIMIT, three of the head, two of the text, return


def test_a_function_of_more_than_sixty_lines_is_long():
    body = "\n".join(f"    a{number} = 1" for number in range(59))
    assert long_functions(f"def f():\n{body}") == 0
    assert long_functions(f"def f():\n{body}\n    b = 1") == 1


def test_descriptions_that_begin_with_a_preposition_are_fragments():
    args = "    Args:\n        a: of the run.\n        b: the run of a.\n        c: offset in bytes.\n    "
    assert fragments(f'def f(a, b, c):\n    """Reads.\n\n{args}"""') == 1


def test_what_is_public_is_documented_once():
    protocol = 'class Reader(Protocol):\n    def read(self):\n        """Read a line."""\n'
    texts = {
        "a.py": protocol,
        "b.py": "class File:\n    def read(self): ...\n    def close(self): ...\n    def _lock(self): ...",
    }
    assert list(undocumented(texts)) == ["b.py:3: close has no docstring, nor has anything that it implements"]


def test_a_count_above_its_ceiling_is_named():
    now = counts("workloads")
    assert list(broken({"workloads": now})) == []
    assert list(broken({"workloads": {**now, "code_lines": now["code_lines"] - 2}})) == [
        f"workloads: {now['code_lines']:,} code lines, 2 above the ceiling"
    ]
