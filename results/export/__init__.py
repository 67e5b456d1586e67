"""A run in files for other programs: tables, pytest-benchmark JSON, published CSV."""
