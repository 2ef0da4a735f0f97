"""Scop -> Schedule: which statements share loops, and in which order loops run."""
