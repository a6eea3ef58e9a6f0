"""`python -m edgeagent` is the command `edgeagent`.

Law: nothing here but the call.
"""

import sys

from edgeagent.cli import main

if __name__ == "__main__":
    sys.exit(main())
