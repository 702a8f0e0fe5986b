"""Model modules that misbehave on purpose, for the census's tests. Each is named in place of a family."""
