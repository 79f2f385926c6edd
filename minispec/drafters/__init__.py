"""Drafters: one proposer a file, one protocol (base.py), the same verifier for all."""

from .base import Context, Draft, Drafter, Scratch
from .model import Model

__all__ = ["Context", "Draft", "Drafter", "Model", "Scratch"]
