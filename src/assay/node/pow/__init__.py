"""Proof of compute over all backends of a node."""
