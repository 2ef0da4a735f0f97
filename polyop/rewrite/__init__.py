"""Op -> Op: rewrites that need no polyhedra."""
