"""What every test needs before any model library is imported."""

import os

# ONNX Runtime writes a device id and uploads usage unless told so before its first import.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
