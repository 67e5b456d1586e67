"""The log of a run and the folder around it: what happened, in order, and where each file lies."""
