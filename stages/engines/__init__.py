"""Engines: what computes inside a stage worker. Each offers `StageModel`s (see `stages.stream`)."""
