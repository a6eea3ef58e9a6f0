"""The jobs that `edgeagent run NAME` knows without a script."""
