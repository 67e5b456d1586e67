"""The measuring client's own error, against a server whose timing is known."""
