"""The LoRA adapters that requests get which name none, as an administrator has set them while the server runs.

Owns that memory; it ends with the server. Must not know HTTP nor workers.
"""

from __future__ import annotations

from collections.abc import Mapping

from router.catalog import ModelSpec, Resolution


class LoraScales:
    """Scales by model and adapter."""

    def __init__(self) -> None:
        self._by_model: dict[str, Mapping[str, float]] = {}

    def set(self, model: str, scales: Mapping[str, float]) -> None:
        """Remember the scales; adapters that are not among them get 0."""
        self._by_model[model] = dict(scales)

    def of(self, spec: ModelSpec) -> dict[str, float]:
        """Return what was set for the adapters that the model has now; none with a scale of 0."""
        chosen = self._by_model.get(spec.name, {})
        return {lora.name: scale for lora in spec.loras if (scale := chosen.get(lora.name, 0.0)) != 0}

    def for_requests(self, resolution: Resolution) -> Mapping[str, float]:
        """Return the adapters of a request that names none: its alias's, else those that were set for the model."""
        return resolution.lora or self.of(resolution.spec)
