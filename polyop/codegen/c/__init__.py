"""Nests of blocks of threads -> CUDA or HIP text: one printer, a file for each thing that is printed."""
