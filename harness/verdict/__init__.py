"""Whether a trial is evidence: pure functions over its log."""
