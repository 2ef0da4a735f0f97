"""Scalar functions as IR on vectors."""
