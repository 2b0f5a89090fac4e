"""Rules of disaggregation."""
