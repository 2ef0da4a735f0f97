"""LoopNest -> LLVM IR text: builder, types, addresses, expressions, loops and stores."""
