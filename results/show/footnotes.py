"""Numbered footnotes: one mark per distinct reason, in order of first use."""

from bakeoff.results.text.format import listed, plain


class Footnotes:
    """Collects the reasons of absent values."""

    def __init__(self) -> None:
        self._subjects: dict[str, list[str]] = {}

    def mark(self, subject: str, reason: str) -> str:
        """The mark to print in place of the value: ``(1)``."""
        subjects = self._subjects.setdefault(plain(reason), [])
        if subject not in subjects:
            subjects.append(subject)
        return f"({list(self._subjects).index(plain(reason)) + 1})"

    def lines(self) -> list[str]:
        """The footnotes: ``(1) TTFT p50 and ITL p50: no valid trial``."""
        pairs = enumerate(self._subjects.items(), start=1)
        return [f"({number}) {listed(subjects)}: {reason}" for number, (reason, subjects) in pairs]
