"""Sweeps, that is, many runs as one: what is asked for, what computes it, and what is shown and kept of it."""
