"""Tables in a terminal."""

import io

from rich.console import Console

from bakeoff.results.report.offline import fragment
from bakeoff.results.show.table import Cell, Column, Table, Tone, figures, names
from bakeoff.results.show.terminal import print_table

TABLE = Table(
    "Speeds",
    [*names("engine"), *figures(["TTFT", "failed"]), Column("output tokens", is_wide=True)],
    [
        [Cell("[bold]a\x1b[31m", colour="e0"), Cell("100 ms", "[90.0, 110]"), Cell("0", tone=Tone.ZERO), Cell("1,234")],
        [Cell("b", colour="e1"), Cell("–"), Cell("3", tone=Tone.BAD), Cell("9")],
    ],
    lead="How fast each is.",
    notes=["of valid trials"],
)


def printed(width: int) -> list[str]:
    written = io.StringIO()
    print_table(TABLE, Console(file=written, width=width, force_terminal=False))
    return [line.rstrip() for line in written.getvalue().splitlines()]


def test_bounds_stand_below_figures_and_wide_columns_and_leads_are_left_out():
    assert printed(60) == [
        "engine               TTFT  failed",
        "─────────────────────────────────",
        "[bold]a [31m       100 ms       0",
        "              [90.0, 110]",
        "b                       –       3",
        "of valid trials",
    ]


def test_a_narrow_terminal_has_the_figures_alone_and_says_what_shows_more():
    assert printed(28) == [
        "engine          TTFT  failed",
        "────────────────────────────",
        "[bold]a [31m  100 ms       0",
        "b                  –       3",
        "of valid trials",
        "a terminal of 31 columns",
        "shows the intervals",
    ]


def test_a_total_is_set_apart_and_grouped_columns_below_their_heading():
    columns = [*names("part"), Column("A", group="E2E"), Column("B", group="E2E", anchor="b"), Column("runs")]
    table = Table("Sums", columns, [[Cell("x"), Cell("1 s"), Cell("2 s"), Cell("3")]], total=list(map(Cell, "s12 ")))
    written = io.StringIO()
    print_table(table, Console(file=written, width=60))
    head, _, row, empty, total = (line.rstrip() for line in written.getvalue().splitlines())
    assert head.split() == ["part", "E2E", "A", "E2E", "B", "runs"]
    assert row.split() == ["x", "1", "s", "2", "s", "3"]
    assert empty == ""
    assert total.split() == ["s", "1", "2"]
    html = str(fragment("tables.html", {"tables": [table]}))
    assert (
        '<th scope="colgroup" colspan="2" class="pair">E2E</th><th scope="col" rowspan="2" class="number">runs' in html
    )
    assert '<th scope="col" class="number"><a href="#b">B</a></th></tr>' in html
    assert '<tr class="sum"><td>s</td>' in html


def test_the_page_shows_every_column_with_its_lead_and_notes():
    html = str(fragment("tables.html", {"tables": [TABLE]}))
    assert '<p class="lead">How fast each is.</p>' in html
    assert '<th scope="col" class="number">output tokens</th>' in html
    assert '<td class="engine e0"><i class="swatch"></i>[bold]a [31m</td>' in html
    assert '<td class="number nowrap">100 ms<span class="why">[90.0, 110]</span></td>' in html
    assert '<td class="number nowrap bad">3</td>' in html
    assert '<p class="why">of valid trials</p>' in html


def test_a_heading_is_a_text_and_no_markup():
    written = io.StringIO()
    table = Table("Ratios", [*names("[bold]metric"), Column("ratio [interval]")], [[Cell("TTFT"), Cell("1.02")]])
    print_table(table, Console(file=written, width=60, force_terminal=False))
    assert written.getvalue().splitlines()[0].split() == ["[bold]metric", "ratio", "[interval]"]
