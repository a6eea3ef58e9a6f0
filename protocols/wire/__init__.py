"""How values look in bytes: kinds of fields, messages, frames.

Everything that comes from a peer passes through here and is checked before anybody acts on it.
"""
