"""What bounds the gateway's work."""

from dataclasses import dataclass
from typing import Final

_GRACE_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one gateway.

    Attributes:
        max_connections: Sessions that have logged in. As many more may be about to.
        max_calls: Embedding calls at once, and as many calls of language models.
        max_queue: Calls of each kind that wait for their turn.
        max_request_bytes: Longest statement.
        call_seconds: Longest time for one call, waiting included.
        cache_bytes: Memory for the models' answers.
        authentication_seconds: Time to log in.
        transfer_seconds: Time for a message to come or go once it has begun.
    """

    max_connections: int = 500
    max_calls: int = 8
    max_queue: int = 256
    max_request_bytes: int = 1024 * 1024
    call_seconds: float = 30
    cache_bytes: int = 64 * 1024 * 1024
    authentication_seconds: float = 10
    transfer_seconds: float = 10

    @property
    def grace_seconds(self) -> float:
        """Time for running calls at shutdown: the longest of them may come to its end."""
        return max(_GRACE_SECONDS, self.call_seconds)
