"""Off-policy learners of constrained problems, and estimates of λ* by an ensemble of them.

A learner is a module with the names of `contract`; `kinds` lists them. Modules outside this package treat a learner's
state as opaque.
"""
