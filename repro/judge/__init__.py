"""Judging: pure functions over stored observations. Nothing here runs, reads or writes anything."""
