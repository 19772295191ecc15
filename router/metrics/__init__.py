"""Everything that `GET /metrics` shows. `docs/metrics.md` describes each family.

Owns the names, the labels and the text. Counters live here and never go back, whatever happens to workers. Must not ask
a worker for anything or wake one: figures of workers come from their status links, those of the fleet from a snapshot.
Labels take values from closed sets alone: `model` is a name of the catalogue, never what a request said.
"""

from router.metrics.registry import RouterMetrics

__all__ = ["RouterMetrics"]
