"""What a run has used of its models, and the limits at which it stops."""

import threading
from dataclasses import asdict, dataclass
from typing import Any

from sag_pg.errors import BudgetExhaustedError

# The usual length of a token: four letters of English, and about one character of Chinese, which
# has three bytes.
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What one model was asked.

    Attributes:
        requests: Requests sent, each try counted.
        prompt_tokens: Tokens of the questions.
        completion_tokens: Tokens of the answers.
        estimated_tokens: How many of both are estimates, where the endpoint did not say.
    """

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated_tokens: int = 0

    def __add__(self, other: "ModelUsage") -> "ModelUsage":
        return ModelUsage(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.estimated_tokens + other.estimated_tokens,
        )

    def __sub__(self, other: "ModelUsage") -> "ModelUsage":
        return ModelUsage(
            self.requests - other.requests,
            self.prompt_tokens - other.prompt_tokens,
            self.completion_tokens - other.completion_tokens,
            self.estimated_tokens - other.estimated_tokens,
        )


class Usage:
    """Counts requests and tokens of one run, and stops it at its limits. Threads may share one.

    All endpoints of a run share the object. The tokens of a request are known when its answer is
    here, so that a run goes beyond `max_tokens` by at most the requests then on their way;
    `max_requests` is never exceeded.

    Args:
        max_tokens: Tokens of questions and answers together; None for no limit.
        max_requests: Requests, each try counted; None for no limit.
    """

    def __init__(self, max_tokens: int | None = None, max_requests: int | None = None) -> None:
        self.max_tokens = max_tokens
        self.max_requests = max_requests
        self._lock = threading.Lock()
        self._by_model: dict[str, ModelUsage] = {}
        self._total = ModelUsage()

    @property
    def total(self) -> ModelUsage:
        """All models together."""
        return self._total

    @property
    def by_model(self) -> dict[str, ModelUsage]:
        """A copy of the counts, by the model's name."""
        with self._lock:
            return dict(self._by_model)

    @property
    def requests(self) -> int:
        """Requests sent, each try counted."""
        return self._total.requests

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the questions."""
        return self._total.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens of the answers."""
        return self._total.completion_tokens

    @property
    def tokens(self) -> int:
        """Tokens of questions and answers."""
        total = self._total
        return total.prompt_tokens + total.completion_tokens

    def check(self) -> None:
        """Make sure that one more request is allowed.

        Raises:
            BudgetExhaustedError: A limit is reached.
        """
        if self.max_requests is not None and self.requests >= self.max_requests:
            raise BudgetExhaustedError(
                f"The limit of {self.max_requests} requests is reached.",
                "What was done stands. Raise --max-requests to go on.",
            )
        if self.max_tokens is not None and self.tokens >= self.max_tokens:
            raise BudgetExhaustedError(
                f"The limit of {self.max_tokens} tokens is reached ({self.tokens} used).",
                "What was done stands. Raise --max-tokens to go on.",
            )

    def begin_request(self, model: str) -> None:
        """Count a request that is about to be sent.

        Raises:
            BudgetExhaustedError: A limit is reached; the request must not be sent.
        """
        with self._lock:
            self.check()
            self._add(model, ModelUsage(requests=1))

    def add_tokens(self, model: str, prompt: int, completion: int, *, estimated: int = 0) -> None:
        """Count the tokens of an answered request.

        Args:
            model: The model's name.
            prompt: Tokens of the question.
            completion: Tokens of the answer.
            estimated: How many of both are estimates.
        """
        with self._lock:
            self._add(model, ModelUsage(0, prompt, completion, estimated))

    def as_dict(self) -> dict[str, Any]:
        """The counts for JSON: `{"requests", "prompt_tokens", …, "models": {name: {…}}}`."""
        with self._lock:
            models = {name: asdict(usage) for name, usage in sorted(self._by_model.items())}
            return {**asdict(self._total), "models": models}

    def _add(self, model: str, usage: ModelUsage) -> None:
        self._by_model[model] = self._by_model.get(model, ModelUsage()) + usage
        self._total += usage


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text from its length, where an endpoint does not say."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)
