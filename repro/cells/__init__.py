"""Cells: environments of a release, built from an index, cached, listed, checked and removed."""
