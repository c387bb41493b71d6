"""What every test needs before any model library is imported, and how long property tests may take."""

import os

from hypothesis import HealthCheck, settings

# ONNX Runtime writes a device id and uploads usage unless told so before its first import.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

# No test asserts wall time, on a machine that may be busy with others.
settings.register_profile("untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
