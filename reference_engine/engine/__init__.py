"""State of requests, the step loop, and the code that builds an engine."""
