"""Which tokens are computed next: a pure function from the queues to a step, and the queues. No torch in here."""
