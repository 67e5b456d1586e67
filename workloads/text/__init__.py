"""Text of an exact number of tokens, made from small grammars."""

from workloads.text.writer import MARKS, MIN_PASSAGE_TOKENS, Style, Writer, first_mark, writer

__all__ = ["MARKS", "MIN_PASSAGE_TOKENS", "Style", "Writer", "first_mark", "writer"]
