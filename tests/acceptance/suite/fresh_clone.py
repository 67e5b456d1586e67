"""`make test` in a fresh clone without any cache."""

from benchmarks.bars import Bars
from tests.acceptance.clone import fresh_clone, timed_make


def main() -> None:
    with fresh_clone() as (folder, environment):
        status, minutes = timed_make("test", folder, environment)
    bars = Bars()
    bars.add("make_test_exit_code", status, "==", 0)
    bars.add("make_test_minutes", minutes, "<=", 12)
    bars.finish()


if __name__ == "__main__":
    main()
