"""The smallest set of settings that still fails, by delta debugging in the current environment."""
