"""Settings for the tests of the project's own machinery."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Machines are shared and noisy: an example may take its time, and a failure found in CI must be found again.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("here"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")
