"""Decisions: given what a deployment is for, what else would serve that better, each with its number."""
