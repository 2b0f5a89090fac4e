"""Shipped deployment specs: realistic good ones, and each failure mode with its corrected twin."""
