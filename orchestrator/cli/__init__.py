"""The command line: one file per verb; parses, wires everything together, maps to exit statuses."""
