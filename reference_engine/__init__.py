"""A small paged, continuously batching LLM engine with an OpenAI-compatible server: `python -m reference_engine`."""
