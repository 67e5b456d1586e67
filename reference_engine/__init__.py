"""A paged, continuously batching LLM engine and OpenAI-compatible server: `python -m bakeoff.reference_engine`."""
