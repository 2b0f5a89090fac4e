"""Renders the result of a check: text for people, json and sarif for machines."""
