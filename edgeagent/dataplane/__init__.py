"""The transfer of tensors: chunks of a round, shards of the training state, digests of it.

Bytes go straight between sockets and the memory that the trainer maps, because copying them on the
way would cost as much as sending them. This package does not decide which bytes go where; that is
done by `protocols.rounds.round` and `protocols.member.pull`.
"""
