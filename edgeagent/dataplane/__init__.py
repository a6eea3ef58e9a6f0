"""Tensors on the wire: chunks of a round, shards of the training state, digests.

Law: bytes go straight between sockets and the memory that the trainer maps; which bytes go where is
decided by `protocols.rounds.round` and `protocols.member.pull`, not here.
"""
