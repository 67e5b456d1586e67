"""The engine in a process of its own; a socket connects its step loop with the server's event loop."""
