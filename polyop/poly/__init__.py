"""Op -> LoopNest: sets, dependences, schedules, tiles, proofs. The only place that imports islpy."""
