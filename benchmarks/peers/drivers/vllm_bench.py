"""Runs inside vLLM's environment: ``vllm bench serve`` without the command that wraps it.

``vllm`` itself asks for a distribution of that name, which the wheel for CPUs is not, and refuses to start.
"""

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    main(parser.parse_args())
