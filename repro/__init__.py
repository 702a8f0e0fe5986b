"""Reproduces training failures of speech models and measures what each cure is worth."""
