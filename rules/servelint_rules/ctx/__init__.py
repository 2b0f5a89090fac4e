"""Rules of long context."""
