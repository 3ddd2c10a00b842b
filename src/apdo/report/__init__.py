"""Reports on finished and running trainings. They read only run folders."""
