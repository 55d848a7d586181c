"""What a run goes through, phase by phase; each uses the fleet and emits events."""
