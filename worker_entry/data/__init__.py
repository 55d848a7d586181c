"""Where examples come from: each module makes a `Source`; `pipeline` turns it into batches."""
