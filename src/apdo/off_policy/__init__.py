"""Off-policy learners of constrained problems, and what several of them together say of λ*.

A learner is a module with the names of `contract`; `kinds` lists them. Whoever is outside this package holds a
learner's state without looking into it.
"""
