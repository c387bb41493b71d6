"""Keep every library quiet: no usage report leaves this machine and none is written to it.

Theory of operation
    Libraries read these variables once, when they are first imported, so `apply` runs at the very start of
    an entry point, before any model library is imported. Stage workers are started by the gateway and
    inherit the environment.

Rules
* Telemetry is switched off even where the environment asks for it.
* Staying offline is a default only: an engine whose weights come from a hub may be told otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from types import MappingProxyType

OFF: Mapping[str, str] = MappingProxyType(
    {
        # ONNX Runtime 1.29 and later report from Linux too; Privacy.md in the wheel, "Disabling Telemetry".
        # `disable_telemetry_events()` comes too late: the device id and the upload database are there by then.
        "ORT_DISABLE_TELEMETRY": "1",
        # huggingface_hub, which transformers and tokenizers bring: its "Environment variables" page.
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # The convention of consoledonottrack.com; huggingface_hub and vLLM honour it.
        "DO_NOT_TRACK": "1",
        # vLLM: the page "Usage Stats Collection" of its documentation.
        "VLLM_NO_USAGE_STATS": "1",
        # Ray: the page "Usage Stats Collection" of its documentation.
        "RAY_USAGE_STATS_ENABLED": "0",
    }
)

OFFLINE: Mapping[str, str] = MappingProxyType(
    {
        # huggingface_hub, "Environment variables": no request for a model that is not on disk.
        "HF_HUB_OFFLINE": "1",
    }
)


def apply(environment: MutableMapping[str, str] = os.environ) -> None:
    """Switch telemetry off for this process and all that it starts. Call it before importing any model library."""
    environment.update(OFF)
    for name, value in OFFLINE.items():
        environment.setdefault(name, value)


def still_on(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The variables of `OFF` that do not have their value, in the order above."""
    return [name for name, value in OFF.items() if environment.get(name) != value]
