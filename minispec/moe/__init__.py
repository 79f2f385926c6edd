"""Mixtures of experts: the layer (experts), and how many experts a pass reads (theory)."""
