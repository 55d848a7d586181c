"""hosts.toml -> Inventory, or one error that lists every mistake in the file."""

from orchestrator.config.load import load, parse
