"""LoopNest -> Module: passes and emitters."""
