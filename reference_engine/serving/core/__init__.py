"""The engine in a process of its own: the step loop on one side of a socket, the event loop on the other."""
