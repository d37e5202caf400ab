"""The one error that a client of the gateway gets to see."""

from enum import StrEnum


class SqlState(StrEnum):
    """The codes that the gateway uses."""

    ADMIN_SHUTDOWN = "57P01"
    BUDGET_EXHAUSTED = "53400"
    INTERNAL = "XX000"
    INVALID_AUTHORIZATION = "28000"
    INVALID_PASSWORD = "28P01"  # noqa: S105
    INVALID_REQUEST = "22023"
    MODEL_FAILED = "58000"
    NO_SUCH_CALL = "42883"
    NO_SUCH_MODEL = "55000"
    PROTOCOL_VIOLATION = "08P01"
    QUERY_CANCELED = "57014"
    TOO_LARGE = "54000"
    TOO_MANY = "53300"
    UNSUPPORTED = "0A000"


class RefusedError(Exception):
    """What was asked for is not answered.

    Args:
        sqlstate: The code that the client acts upon.
        message: What was wrong. Goes to the client and may hold what the client sent, so it is
            never logged.
        hint: What would be right, or None.
    """

    def __init__(self, sqlstate: SqlState, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.hint = hint


class ProtocolViolationError(RefusedError):
    """The client does not speak the protocol, so that the connection cannot go on.

    Args:
        message: What was wrong; holds nothing of what the client sent.
    """

    def __init__(self, message: str) -> None:
        super().__init__(SqlState.PROTOCOL_VIOLATION, message)
