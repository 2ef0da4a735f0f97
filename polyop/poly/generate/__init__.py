"""TileProgram -> LoopNest: isl writes the loops."""
