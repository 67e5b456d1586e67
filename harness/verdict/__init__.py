"""Verdicts: whether a trial is valid evidence, as pure functions over its log."""
