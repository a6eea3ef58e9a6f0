"""`edgeagent doctor`: looks at everything that training with others needs, and says what to do.

The probes (`device.py`, `multicast.py`, `peer.py`, ...) do the I/O and return facts (`facts.py`)
without judging them. What the facts mean is decided by pure functions (`device_findings.py`,
`peer_findings.py`), which can be tested without a network.
"""
