"""From a command line to a sealed plan and its keeper, without a terminal: the caller asks a person."""
