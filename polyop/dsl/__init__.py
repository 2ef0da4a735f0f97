"""Text -> Op: grammar, syntax tree, checks, einsum. The only place that imports lark."""
