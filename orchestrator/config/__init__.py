"""hosts.toml -> Inventory, or one error that lists every mistake in the file."""
