"""Runs: their settings, their folders, and the runner that fills them."""
