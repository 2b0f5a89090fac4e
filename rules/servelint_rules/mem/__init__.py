"""Rules of capacity."""
