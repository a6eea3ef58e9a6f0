"""`edgeagent demo`: the whole story told with real agents on one machine, then a report.

Law: the demo sees its agents as a user would, by what they write and how they end.
"""
