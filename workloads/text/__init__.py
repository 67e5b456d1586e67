"""Text with an exact number of tokens, generated from small grammars."""

from bakeoff.workloads.text.writer import MARKS, MIN_PASSAGE_TOKENS, Style, Writer, first_mark, writer

__all__ = ["MARKS", "MIN_PASSAGE_TOKENS", "Style", "Writer", "first_mark", "writer"]
