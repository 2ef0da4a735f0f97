"""LoopNest -> LoopNest: what is rewritten for a CPU before LLVM IR is written, and the check of what is left."""
