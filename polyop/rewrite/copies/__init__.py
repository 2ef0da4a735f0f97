"""Op -> Op: operands and results of contractions in another order, shape or type than they have in memory."""
