"""Rules of the hardware ledger."""
