"""Rules of constrained decoding."""
