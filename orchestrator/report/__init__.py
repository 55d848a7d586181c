"""A run as a page: its folder is read into facts, and these into one file of HTML that needs nothing else."""
