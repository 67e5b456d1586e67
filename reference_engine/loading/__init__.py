"""Read checkpoints: safetensors directories, GGUF files, tokenizers and chat templates."""
