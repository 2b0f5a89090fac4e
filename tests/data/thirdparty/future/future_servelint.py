"""A plugin written for a later contract."""

servelint_api = "7"
