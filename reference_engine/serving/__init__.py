"""The OpenAI-compatible HTTP server and the engine processes behind it."""
