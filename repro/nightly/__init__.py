"""The nightly: what is to run, whether all of it did, what changed since, and the one issue that says so."""
