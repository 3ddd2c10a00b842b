"""Reports on finished and running trainings: they read run folders and nothing else."""
