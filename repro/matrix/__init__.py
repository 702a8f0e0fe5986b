"""The matrix: pytest run in each cell, bounded, resumable, merged."""
