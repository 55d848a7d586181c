"""Lists of hosts that other tools keep -> candidates for hosts.toml."""
