"""The user's command: what it starts, which mistakes are refused, and what may go wrong with it."""
