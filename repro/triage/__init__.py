"""From a pasted traceback to an answer: which known failure it is, whether these versions have it, what cures it there.

Everything that comes in is hostile text: it is read in bounded memory, matched by expressions that take linear time,
never evaluated, and made inert before it is shown. Standard library only; torch is never imported.
"""
