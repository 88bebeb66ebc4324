"""lockd: an environment lock and drift-enforcement daemon for training machines."""

__version__ = "0.1.0"
