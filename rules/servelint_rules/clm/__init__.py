"""Rules of claims."""
