"""docs/views.md agrees with the code: its tables are generated from the tools' definitions."""

import re
from pathlib import Path

from bakeoff.results.views import VIEWS

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "views.md"
BLOCK = re.compile(r"<!-- (\w+): [^\n]* -->\n(.*?)<!-- end -->", re.DOTALL)


def definitions() -> str:
    lines = ["| tool | metric | definition | why it differs from ours |", "|---|---|---|---|"]
    for tool in VIEWS.values():
        for number, definition in enumerate(tool.definitions):
            name = f"**{tool.title}** {tool.version}" if number == 0 else ""
            lines.append(f"| {name} | {definition.name} | {definition.formula} | {definition.why} |")
    return "\n".join(lines) + "\n"


def conventions() -> str:
    lines = ["| tool | percentiles | std divides by | duration | failed requests |", "|---|---|---|---|---|"]
    for tool in VIEWS.values():
        row = tool.conventions
        lines.append(f"| {tool.title} | {row.percentiles} | {row.std} | {row.duration} | {row.failures} |")
    return "\n".join(lines) + "\n"


def test_the_tables_are_the_codes() -> None:
    blocks = dict(BLOCK.findall(DOCUMENT.read_text(encoding="utf-8")))
    for name, table in {"definitions": definitions(), "conventions": conventions()}.items():
        assert blocks[name] == table, f"put this between the two comments of docs/views.md:\n{table}"


def test_it_is_linked_from_the_definitions() -> None:
    assert "(views.md)" in (ROOT / "docs" / "definitions.md").read_text(encoding="utf-8")
