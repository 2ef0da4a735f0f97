"""How one cluster is shared by blocks of a GPU's threads: strategies, and what stands between threads."""
