"""Ours and a peer, verified to be equal, then timed in turn: ``python -m experiments.benchmarks``."""
