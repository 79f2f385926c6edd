"""Generators of fresh cases, one file for each set of exercises (see fresh.py)."""
