"""Makes a random model of a few wide layers: memory bandwidth limits its steps on a GPU, not kernel launches.

    python -m benchmarks.wide_model LIKE FOLDER

The model has LIKE's architecture and tokenizer. It takes 4.2 GB on disk; a step in float32 reads 8 GB.
"""

import argparse
import shutil
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

WIDE = {
    "num_hidden_layers": 2, "hidden_size": 8192, "intermediate_size": 28672,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("like", type=Path, help="a Llama's checkpoint folder")
    parser.add_argument("folder", type=Path, help="folder to create for the model")
    options = parser.parse_args()
    shutil.copytree(options.like, options.folder, ignore=shutil.ignore_patterns("*.safetensors*", "*.gguf"))
    config = AutoConfig.from_pretrained(options.like, **WIDE)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(options.folder)


if __name__ == "__main__":
    main()
