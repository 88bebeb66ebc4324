"""What all tests share: properties are judged by what they find, not by how fast a busy machine is."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("calm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("calm")

# What starts tests in the background (nohup, a shell without job control) has them ignore these, and so would what the
# tests start.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
