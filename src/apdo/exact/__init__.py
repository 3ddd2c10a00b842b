"""Finite CMDPs solved exactly."""
