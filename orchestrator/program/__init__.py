"""The user's command: what it starts, which mistakes are refused, and which problems are likely."""
