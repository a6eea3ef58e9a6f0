"""`edgeagent demo`: a whole story told with real agents on one machine, followed by a report.

The demo sees its agents as a user would: by what they write and how they end.
"""
