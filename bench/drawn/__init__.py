"""What `bench/random_operators.py` draws: kinds of operators by polyop, NumPy and PyTorch."""
