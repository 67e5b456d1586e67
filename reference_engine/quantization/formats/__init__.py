"""Quantised Hugging Face checkpoints: the layouts that `quantization_config` in config.json names."""
