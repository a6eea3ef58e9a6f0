"""How values are represented in bytes: kinds of fields, messages, frames.

Everything that comes from a peer passes through here and is checked before any part acts on it.
"""
