"""Numerics: pure functions that know nothing of algorithms or environments."""
