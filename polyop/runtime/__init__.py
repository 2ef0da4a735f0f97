"""Module -> Kernel: assembling, loading, calling, caching, threads."""
