"""Compiled versions of operations for which stock torch spends more time on launching than on computing."""
