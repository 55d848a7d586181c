"""The same job as files for an engine that starts tasks itself: Slurm, Kubernetes."""
