"""Under which condition a failure happens: learned from stored observations, compared with what is declared."""
