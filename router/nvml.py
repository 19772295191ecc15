"""NVIDIA's management library, where `nvidia-ml-py` is installed: which card is which, and what is used of it.

Owns that it is optional: whatever is wrong with it, it is as if it were not there. Reading it opens no GPU context.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

from router.device_facts import pci_key

logger = logging.getLogger(__name__)


class Nvml:
    """The cards of this machine by PCI address."""

    def __init__(self, library: Any) -> None:
        """Raises: the library's own errors."""
        self._library = library
        library.nvmlInit()
        self._handles: dict[str, Any] = {}
        self.uuids: dict[str, str] = {}
        """By `pci_key`, as CUDA's variable of visible devices takes them."""
        for index in range(library.nvmlDeviceGetCount()):
            handle = library.nvmlDeviceGetHandleByIndex(index)
            address = pci_key(_text(library.nvmlDeviceGetPciInfo(handle).busId))
            self._handles[address] = handle
            self.uuids[address] = _text(library.nvmlDeviceGetUUID(handle))

    @classmethod
    def open(cls) -> Nvml | None:
        """Return the library, ready for use; None where it or its driver is missing."""
        try:
            library = importlib.import_module("pynvml")
        except ImportError:
            return None
        try:
            return cls(library)
        except Exception as error:  # noqa: BLE001 - the library's errors have no common public base across its versions
            logger.debug("NVML cannot be used: %s", error)
            return None

    def free_bytes(self, address: str) -> int | None:
        """Return what is free of the card at a PCI address; None if it does not tell."""
        handle = self._handles.get(address)
        if handle is None:
            return None
        try:
            return int(self._library.nvmlDeviceGetMemoryInfo(handle).free)
        except Exception as error:  # noqa: BLE001 - as above; a card may fall off its bus at any time
            logger.debug("NVML does not tell the memory of %s: %s", address, error)
            return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
