"""What trials send: planned, checked and stored before the load begins."""
