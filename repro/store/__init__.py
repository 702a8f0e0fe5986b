"""Results on disk: JSON Lines, append-only, one file per writing process, merged by record id."""
