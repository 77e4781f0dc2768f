"""Saves and restores sharded pytrees."""
