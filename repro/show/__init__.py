"""Everything a person reads: terminal, pages, pictures. Judges nothing and never imports torch."""
