"""LoopNest -> LoopNest: what is rewritten for a GPU before its text is printed, and how a nest is split into kernels."""
