"""The web page of an agent: what `edgeagent page` opens in a browser on the agent's own device.

Nothing of it listens, or is imported from a library, before somebody asks for the page on the
command socket; what the page shows of the past is kept from the agent's start, within bounds.
"""
