"""Many runs as one: what a sweep asks for, who computes it, and what is shown and left of it."""
