"""Rules of the spec itself."""
