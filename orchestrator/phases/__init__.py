"""The phases of a run; each uses the fleet and emits events."""
