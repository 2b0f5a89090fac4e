"""Rules of parallelism."""
