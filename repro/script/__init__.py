"""Standalone reproductions: one commented file each, with pins, that needs nothing of this project."""
