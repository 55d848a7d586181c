"""The verbs: from a request to its result and events, without a terminal."""
