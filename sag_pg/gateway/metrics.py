"""What the gateway has done so far."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

# Percentiles are over the last so many calls of a kind.
_WINDOW: Final = 1000


@dataclass(slots=True)
class CallMetrics:
    """The calls of one kind.

    Attributes:
        count: Calls, failed ones included.
        errors: Calls that were refused or failed.
        cache_hits: Calls whose models' answers all came out of the cache.
    """

    count: int = 0
    errors: int = 0
    cache_hits: int = 0
    _milliseconds: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    def record(self, milliseconds: float, *, is_error: bool, is_cached: bool) -> None:
        """Count a call that has ended."""
        self.count += 1
        self.errors += is_error
        self.cache_hits += is_cached
        self._milliseconds.append(milliseconds)

    def as_json(self) -> dict[str, Any]:
        """Return counts and latencies in ms; a latency is None before the first call."""
        ordered = sorted(self._milliseconds)
        return {
            "count": self.count,
            "errors": self.errors,
            "cache_hits": self.cache_hits,
            **{f"p{percent}_ms": _percentile(ordered, percent) for percent in (50, 95, 99)},
        }


def _percentile(ordered: Sequence[float], percent: int) -> float | None:
    """The least value that so many per cent do not exceed."""
    if not ordered:
        return None
    return round(ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)], 3)
