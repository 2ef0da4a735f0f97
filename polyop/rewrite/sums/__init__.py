"""Op -> Op: what becomes of reductions and recurrences: one pass, blocks, shares, prefixes, factors."""
