"""The pictures of README, taken of a published run's page: ``python -m benchmarks.pictures``.

The summary of one load, in both themes. It needs the environment of ``make test`` and its Chromium.
"""

import argparse
from pathlib import Path

from benchmarks.published import FIRST_PAGE_LOAD
from tests.results.browsing import launched, only_page

ROOT = Path(__file__).parents[1]
_WIDTH = 1120
_ONE_LOAD = """load => {
  for (const body of document.querySelectorAll("table.summary tbody"))
    body.hidden = body.querySelector("th").textContent.trim() !== load;
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, default=ROOT / "docs/results/cpu-bakeoff/report.html", help="of the run")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/pictures", help="folder of the pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with launched() as browser:
        for theme in ("light", "dark"):
            page = only_page(browser, theme=theme, width=_WIDTH)
            page.goto(options.page.resolve().as_uri())
            page.evaluate(_ONE_LOAD, FIRST_PAGE_LOAD)
            picture = options.out / f"summary-{theme}.png"
            page.locator("table.summary").screenshot(path=picture)
            print(f"{picture}: {picture.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
