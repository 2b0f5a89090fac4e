"""Readers of published configs, one module for each group of families with a common module tree."""
