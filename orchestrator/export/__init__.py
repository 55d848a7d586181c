"""Files of a planned job for an engine that starts tasks itself: Slurm, Kubernetes."""
