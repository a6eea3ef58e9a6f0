"""Makes `python -m edgeagent` the same as the command `edgeagent`."""

import sys

from edgeagent.cli import main

if __name__ == "__main__":
    sys.exit(main())
