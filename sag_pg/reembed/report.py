"""What a change of the embedding model did, and how far it is."""

from dataclasses import dataclass, field

from sag_pg.ingest.report import describe_usage
from sag_pg.models.budget import ModelUsage


@dataclass(slots=True)
class Progress:
    """How far a run is; one object that changes while it runs.

    Attributes:
        rows: Rows that this run has dealt with, whatever became of them.
        total: Rows that there were to deal with when it began; more may come.
        failed: Rows for which the model failed.
        tokens: Tokens used so far.
    """

    rows: int = 0
    total: int = 0
    failed: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """A row for which the model failed.

    Attributes:
        kind: "event", "chunk" or "entity".
        row_id: Its key in that table.
        name: The document's source, or the entity's name.
        message: What was wrong.
        hint: What would be right.
    """

    kind: str
    row_id: int
    name: str
    message: str
    hint: str | None

    def __str__(self) -> str:
        return f"{self.name} ({self.kind} {self.row_id}): {self.message}"


@dataclass(slots=True)
class Report:
    """What a run did.

    Attributes:
        model: The model whose vectors were made.
        dimensions: Their length.
        embedded: Rows that got a vector by this run.
        without: Rows that got none, because the model does not know their script or they went
            meanwhile.
        failed: Rows that got none because the model failed for them. A further run with the same
            model tries them again.
        failures: Each of these, the first thousand.
        finished: Whether the database now goes by this model's vectors, with none left to make.
        stopped: Why the run ended before that, be it a budget or a model that is down; None where
            it did not. The same call goes on from there.
        usage: What the model was asked.
        seconds: Time of the whole run.
    """

    model: str
    dimensions: int
    embedded: int = 0
    without: int = 0
    failed: int = 0
    failures: list[Failure] = field(default_factory=list)
    finished: bool = False
    stopped: str | None = None
    usage: ModelUsage = field(default_factory=ModelUsage)
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return self.finished and not self.failed

    def summary(self) -> str:
        """Return the run in one line."""
        parts = [
            f"{self.embedded} rows embedded, {self.without} without a vector, {self.failed} failed",
            f"{self.seconds:.1f} s",
        ]
        if self.usage.requests:
            parts.append(describe_usage(self.usage))
        state = "is in use" if self.finished else "is not in use yet"
        return f"Model {self.model} with {self.dimensions} dimensions {state}: " + "; ".join(parts)
