"""The errors that the package raises on purpose.

Each message says what was wrong; `hint`, where it is known, says what would be right. The
command line prints both and leaves with `exit_code`.
"""


class SagError(Exception):
    """Base of all errors that a user can act upon.

    Args:
        message: What was wrong.
        hint: What would be right, or None where nothing useful can be said.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ConfigurationError(SagError):
    """A setting is missing, contradicts another one or cannot be used here."""

    exit_code = 2


class DatabaseError(SagError):
    """The database refused a statement or could not be reached."""


class MigrationError(SagError):
    """A migration failed and left no trace."""


class MigrationsPendingError(SagError):
    """The database is older than the program, or its objects differ from the program's."""

    exit_code = 3


class DatabaseNewerError(SagError):
    """The database was migrated by a newer program than this one."""

    exit_code = 4


class ModelError(SagError):
    """A model is not installed, does not fit the database or gave no usable answer."""


class BudgetExhaustedError(ModelError):
    """The tokens or requests that the user allowed are used up. What was made so far stands."""


class EndpointRefusedError(ModelError):
    """An endpoint does not know the key, the model or the address: no further try would help."""


class EndpointDownError(ModelError):
    """A model failed so many times in a row that going on would be for nothing now."""


class InputRejectedError(ModelError):
    """A model has no answer to just this input. To others it may have one."""


class LoadError(SagError):
    """A document could not be read. The message names the file and, where it has one, the line."""
