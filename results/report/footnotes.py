"""Numbered footnotes: one mark per distinct reason, in the order in which the reader meets them."""

from results.text.format import listed, plain


class Footnotes:
    """Collects why values are absent."""

    def __init__(self) -> None:
        self._subjects: dict[str, list[str]] = {}

    def mark(self, subject: str, reason: str) -> str:
        """The mark to print where the value would stand: ``(1)``."""
        subjects = self._subjects.setdefault(plain(reason), [])
        if subject not in subjects:
            subjects.append(subject)
        return f"({list(self._subjects).index(plain(reason)) + 1})"

    def lines(self) -> list[str]:
        """The notes: ``(1) TTFT p50 and ITL p50: no valid trial``."""
        pairs = enumerate(self._subjects.items(), start=1)
        return [f"({number}) {listed(subjects)}: {reason}" for number, (reason, subjects) in pairs]
