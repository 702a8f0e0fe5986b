"""Tiny speech models and a synthetic speech set: built from configuration and seeds, nothing downloaded (cell tier)."""
