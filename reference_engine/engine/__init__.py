"""One request's state, the step loop around it, and what puts both together."""
