"""What bounds the gateway's work."""

from dataclasses import dataclass


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
        grace_seconds: Time for running calls at shutdown.
    """

    max_connections: int = 500
    max_calls: int = 8
    max_queue: int = 256
    max_request_bytes: int = 1024 * 1024
    call_seconds: float = 30
    cache_bytes: int = 64 * 1024 * 1024
    authentication_seconds: float = 10
    transfer_seconds: float = 30
    grace_seconds: float = 30
