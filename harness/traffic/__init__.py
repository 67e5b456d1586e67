"""The traffic of trials: planned, checked and stored before the load begins."""
