"""What the worker and its parent both need: orders, encoded plans, transports, and the events of an answer."""
