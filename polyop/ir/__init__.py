"""The shared vocabulary: every noun that crosses a border between stages. No isl, no LLVM, no lark."""
