"""docs/views.md agrees with the code: its tables are generated from the tools' definitions."""

from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "views.md"


def test_it_is_linked_from_the_definitions() -> None:
    assert "(views.md)" in (ROOT / "docs" / "definitions.md").read_text(encoding="utf-8")
