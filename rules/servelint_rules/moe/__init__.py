"""Rules of mixture of experts."""
