"""The OpenAI wire format: request parsing, answer shapes, streams, metrics."""
