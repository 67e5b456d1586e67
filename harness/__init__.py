"""The harness."""
