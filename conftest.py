"""Loads the project's own pytest plugin."""

pytest_plugins = ["repro.observe.plugin"]
