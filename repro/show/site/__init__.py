"""The static site: templates, style and script, and what fills them. Needs no server, and asks nobody for anything."""
