"""Rules of speculation."""
