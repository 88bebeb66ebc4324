"""Public reports of environments that drifted, each a test: the one line of lockd names what moved."""
