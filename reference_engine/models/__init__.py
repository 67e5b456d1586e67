"""Decoder families, one file each; no engine logic inside."""
