"""Explain: what a kernel does and why, as text."""
