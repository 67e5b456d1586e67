"""Runs ``vllm bench serve`` in vLLM's environment without the ``vllm`` command.

That command requires an installed distribution named ``vllm``, but the wheel for CPUs has another name.
"""

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    main(parser.parse_args())
