"""The command line: one file per verb; parses, connects the parts, maps results to exit statuses."""
