"""A model behind HTTP for the tests: a real server that speaks OpenAI's protocol, well or badly.

Each request is answered by the next behaviour of the script for its kind, and well when the script
is at its end. Kinds are "extraction", "question_entities", "choice", "chat" (any other
conversation), "embedding" and "rerank".

    with ModelServer() as server:
        server.script("extraction", EMPTY, rate_limited("0.1"), GOOD)

Run as a program, it serves recorded answers of a language model for long measurements:

    python tests/model_server.py --port 8000 --answers DIRECTORY
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import math
import re
import select
import socket
import struct
import sys
import threading
import time
import unicodedata
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self

JsonObject = dict[str, Any]

CHAT_MODEL = "test-chat"
EMBEDDING_MODEL = "test-embedding"
RERANK_MODEL = "test-rerank"

_MEGABYTE = 1024 * 1024

_WORDS = re.compile(r"\w+")
_NAMES = re.compile(r"[A-Z]\w*(?: (?:of |the )?[A-Z]\w*)*")


# --- Behaviours ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Behaviour:
    """What the server does with one request.

    Attributes:
        name: One of the names below.
        value: What it is done with, if anything.
    """

    name: str
    value: Any = None


GOOD = Behaviour("good")

# Answers of a language model.
EMPTY = Behaviour("content", "")
INVALID_JSON = Behaviour("content", '{"title": "Broken, "entities": [}')
PROSE_ONLY = Behaviour("content", "I am afraid that I cannot find anything in it.")
TRUNCATED = Behaviour("truncated")
PROSE_AROUND = Behaviour(
    "wrapped", "Of course {gladly}, here it is:\n@@\nIs there {anything} else?"
)
FENCED = Behaviour("wrapped", "```json\n@@\n```")
THINKING = Behaviour("wrapped", '<think>\nShall it be {"entities": []}? No.\n</think>\n\n@@')
THINKING_UNOPENED = Behaviour("wrapped", 'Shall it be {"entities": []}? No.\n</think>\n@@')
NULL_FIELDS = Behaviour("null_fields")
WRONG_IDS = Behaviour("wrong_ids")
REFUSAL = Behaviour("refusal")
NULL_CONTENT = Behaviour("content", None)
NO_CHOICES = Behaviour("no_choices")
ERROR_IN_200 = Behaviour("body", {"error": {"message": "Provider returned error", "code": 502}})
CONTENT_PARTS = Behaviour("content_parts")
NO_USAGE = Behaviour("no_usage")

# Answers of an embedding model.
WRONG_DIMENSION = Behaviour("wrong_dimension")
TOO_FEW_VECTORS = Behaviour("too_few_vectors")
NOT_A_NUMBER = Behaviour("vector_of", math.nan)
NULL_IN_VECTOR = Behaviour("vector_of", None)
ZERO_VECTOR = Behaviour("vector_of", 0.0)
SHUFFLED = Behaviour("shuffled")
REPEATED_INDEX = Behaviour("repeated_index")
WITHOUT_INDEX = Behaviour("without_index")

# What happens on the way.
RESET = Behaviour("reset")
RESET_IN_BODY = Behaviour("reset_in_body")
WEB_PAGE = Behaviour("web_page")


def content(text: str | None) -> Behaviour:
    """The language model says just this."""
    return Behaviour("content", text)


def answer(value: Any) -> Behaviour:
    """The language model gives this as JSON."""
    return Behaviour("content", json.dumps(value, ensure_ascii=False))


def body(value: Any) -> Behaviour:
    """The server answers with status 200 and this body."""
    return Behaviour("body", value)


def raw(text: str) -> Behaviour:
    """The server answers with status 200 and this text, be it JSON or not."""
    return Behaviour("raw", text)


def flood(megabytes: int, code: int = 200) -> Behaviour:
    """An answer of blanks that goes on for so long, or until the client has enough."""
    return Behaviour("flood", (megabytes, code))


def encoded(encoding: str, whole: bytes, megabytes: int = 0) -> Behaviour:
    """These bytes, said to be encoded so, and then a flood."""
    return Behaviour("encoded", (encoding, whole, megabytes))


def status(code: int, error: Any = "Something is wrong.", **headers: str) -> Behaviour:
    """The server answers with an error; underscores in names of headers become dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Behaviour("status", (code, _error(error), named))


def rate_limited(retry_after: str | None = None) -> Behaviour:
    """429, with Retry-After as it is given: seconds, or see `http_date`."""
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return status(429, "Rate limit reached for requests", **headers)


def http_date(seconds: float) -> str:
    """A point of time from now, as Retry-After may give it (whole seconds)."""
    return formatdate(time.time() + seconds, usegmt=True)


def silence(seconds: float) -> Behaviour:
    """Nothing for so long, then a good answer."""
    return Behaviour("silence", seconds)


def drip(seconds: float) -> Behaviour:
    """A blank now and then for so long, as a server does whose queue is full, then good."""
    return Behaviour("drip", seconds)


# How servers refuse what they do not know.
REFUSALS: Mapping[tuple[str, str], tuple[int, JsonObject]] = {
    ("openai", "temperature"): (
        400,
        {
            "error": {
                "message": "Unsupported value: 'temperature' does not support 0 with this model. "
                "Only the default (1) value is supported.",
                "type": "invalid_request_error",
                "param": "temperature",
                "code": "unsupported_value",
            }
        },
    ),
    ("openai", "response_format"): (
        400,
        {
            "error": {
                "message": "Invalid parameter: 'response_format' of type 'json_schema' is not "
                "supported with this model.",
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            }
        },
    ),
    ("openai", "dimensions"): (
        400,
        {
            "error": {
                "message": "This model does not support specifying dimensions.",
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            }
        },
    ),
    ("vllm", "dimensions"): (
        400,
        {
            "object": "error",
            "message": 'Model "test-embedding" does not support matryoshka representation, '
            "changing output dimensions will lead to poor results.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
    ),
    ("vllm", "response_format"): (
        422,
        {
            "detail": [
                {
                    "type": "extra_forbidden",
                    "loc": ["body", "response_format"],
                    "msg": "Extra inputs are not permitted",
                }
            ]
        },
    ),
    ("deepseek", "response_format"): (
        400,
        {
            "error": {
                "message": "This response_format type is unavailable now",
                "type": "invalid_request_error",
                "param": None,
                "code": "invalid_request_error",
            }
        },
    ),
    ("ollama", "response_format"): (400, {"error": {"message": "invalid format: json_schema"}}),
    ("litellm", "response_format"): (
        400,
        {
            "error": {
                "message": "litellm.UnsupportedParamsError: ollama does not support parameters: "
                "['response_format']. To drop these, set `litellm.drop_params=True`",
                "type": None,
                "param": None,
                "code": "400",
            }
        },
    ),
    ("litellm", "temperature"): (
        400,
        {
            "error": {
                "message": "litellm.UnsupportedParamsError: O-series models don't support "
                "temperature=0. Only temperature=1 is supported.",
                "type": None,
                "param": None,
                "code": "400",
            }
        },
    ),
    ("litellm", "dimensions"): (
        400,
        {
            "error": {
                "message": "litellm.UnsupportedParamsError: Setting dimensions is not supported "
                "for OpenAI `text-embedding-3` and later models.",
                "type": None,
                "param": None,
                "code": "400",
            }
        },
    ),
    ("router", "response_format"): (
        404,
        {
            "error": {
                "message": "No endpoints found that can handle the requested parameters.",
                "code": 404,
            }
        },
    ),
    ("tgi", "response_format"): (501, {"error": "Grammar is not implemented", "error_type": "x"}),
}


def refused(parameter: str, words_of: str) -> Behaviour:
    """The parameter is refused in the words of a server, see `REFUSALS`."""
    code, error_body = REFUSALS[words_of, parameter]
    return Behaviour("status", (code, error_body, {}))


# --- What the good answers are -------------------------------------------------------------------


class SimpleAnswers:
    """Answers made from the request alone: capitalised words are entities, the first are chosen."""

    def extraction(self, asked: JsonObject) -> JsonObject:
        """Answer `{"title", "headings", "text", "entity_types"}`."""
        return _extraction(dict.fromkeys(_NAMES.findall(asked["text"])))

    def question_entities(self, asked: JsonObject) -> JsonObject:
        """Answer `{"question"}`."""
        return {"entities": list(dict.fromkeys(_NAMES.findall(asked["question"])))[:20]}

    def choice(self, asked: JsonObject) -> JsonObject:
        """Answer `{"question", "candidates": [{"number", "title", "text"}], "limit"}`."""
        numbers = [candidate["number"] for candidate in asked["candidates"]]
        return {"chosen": numbers[: asked["limit"]]}


class RecordedAnswers(SimpleAnswers):
    """What a language model once answered, from a directory of the evaluation data.

    Args:
        directory: Holds `corpus.jsonl`, `extraction.jsonl`, `questions.jsonl` and
            `query_entities.jsonl`.
    """

    def __init__(self, directory: Path) -> None:
        extracted = {line["id"]: line["entities"] for line in _lines(directory, "extraction")}
        self._by_text: dict[str, list[str]] = {}
        for passage in _lines(directory, "corpus"):
            self._by_text[_key(passage["text"])] = extracted.get(passage["id"], [])
        entities = {line["id"]: line["entities"] for line in _lines(directory, "query_entities")}
        self._by_question = {
            _key(line["question"]): entities.get(line["id"], [])
            for line in _lines(directory, "questions")
        }

    def extraction(self, asked: JsonObject) -> JsonObject:
        """Give the entities of the passage whose text is asked for; none where it is unknown."""
        return _extraction(self._by_text.get(_key(asked["text"]), []))

    def question_entities(self, asked: JsonObject) -> JsonObject:
        """Give the entities of the question; none where it is unknown."""
        return {"entities": self._by_question.get(_key(asked["question"]), [])[:20]}


def _extraction(names: Iterable[str]) -> JsonObject:
    entities = [
        {"name": name, "type": "tag", "subject": False, "role": None, "aliases": []}
        for name in itertools.islice(names, 20)
    ]
    return {"title": None, "content": None, "entities": entities}


def _key(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def _lines(directory: Path, name: str) -> Iterable[JsonObject]:
    with (directory / f"{name}.jsonl").open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def hashed_vector(text: str, dimensions: int) -> list[float]:
    """A vector in which texts that share words are near each other. Not of length 1."""
    vector = [0.0] * dimensions
    for word in _WORDS.findall(text.lower()) or [text]:
        digest = hashlib.sha256(word.encode()).digest()
        vector[int.from_bytes(digest[:4]) % dimensions] += 1.0 if digest[4] % 2 else -1.0
        vector[int.from_bytes(digest[5:9]) % dimensions] += 0.5
    # Words can cancel each other out, and a zero vector is a fault.
    vector[0] += 0.01
    return vector


# --- The server ----------------------------------------------------------------------------------

Flavour = Literal["openai", "vllm", "deepseek", "plain"]


@dataclass(frozen=True)
class Request:
    """A request as it came.

    Attributes:
        kind: See the module.
        path: The path.
        headers: By lower-case name.
        body: Decoded.
    """

    kind: str
    path: str
    headers: Mapping[str, str]
    body: JsonObject


@dataclass
class ModelServer:
    """The server, on a free port of the loopback; a context manager.

    Attributes:
        flavour: "openai" and "vllm" know JSON schemas, "deepseek" JSON mode alone, and that only
            where the conversation says "json"; "plain" knows no response_format.
        key: Where set, requests need it, and the error shows the key that came instead.
        dimensions: Length of vectors where the request does not say it.
        answers: What is asked for a good answer.
        embed: Makes the vectors; None for `hashed_vector`.
        delay: Seconds that each request takes at least.
        requests: All that came, in order.
        aborted: How many clients broke off their request before the answer.
        peak: The most requests that were here at once.
    """

    flavour: Flavour = "openai"
    key: str | None = None
    dimensions: int = 32
    answers: SimpleAnswers = field(default_factory=SimpleAnswers)
    embed: Callable[[Sequence[str]], Sequence[Sequence[float]]] | None = None
    delay: float = 0.0
    port: int = 0
    requests: list[Request] = field(default_factory=list, init=False)
    aborted: int = field(default=0, init=False)
    peak: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._scripts: dict[str, deque[Behaviour]] = defaultdict(deque)
        self._always: dict[str, Behaviour] = {}
        self._refused: dict[str, Behaviour] = {}
        self._running = 0
        self._closing = threading.Event()
        self._server = _HttpServer(("127.0.0.1", self.port), self)
        self.port = self._server.server_address[1]

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Serve in a thread."""
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop serving; requests that are here end without an answer."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def script(self, kind: str, *behaviours: Behaviour) -> None:
        """Say what happens with the next requests of a kind; after them all is well."""
        with self._lock:
            self._scripts[kind].extend(behaviours)

    def always(self, kind: str, behaviour: Behaviour) -> None:
        """Say what happens with all requests of a kind that no script is left for."""
        with self._lock:
            self._always[kind] = behaviour

    def refuse(self, parameter: str, words_of: str) -> None:
        """Refuse each request that has the parameter, see `REFUSALS`."""
        self._refused[parameter] = refused(parameter, words_of)

    def count(self, kind: str | None = None) -> int:
        """How many requests of a kind came; of all kinds for None."""
        return len(self.requests) if kind is None else len(self.bodies(kind))

    def bodies(self, kind: str) -> list[JsonObject]:
        """The bodies of the requests of a kind, in order."""
        with self._lock:
            return [request.body for request in self.requests if request.kind == kind]

    # What follows is the handler's.

    def _begin(self, request: Request) -> Behaviour:
        with self._lock:
            self.requests.append(request)
            self._running += 1
            self.peak = max(self.peak, self._running)
            script = self._scripts[request.kind]
            behaviour = script.popleft() if script else self._always.get(request.kind, GOOD)
        return self._refusal(request) or behaviour

    def _end(self) -> None:
        with self._lock:
            self._running -= 1

    def _abort(self) -> None:
        with self._lock:
            self.aborted += 1

    def _refusal(self, request: Request) -> Behaviour | None:
        sent = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.key is not None and sent != self.key:
            return status(401, {"message": f"Incorrect API key provided: {sent}."})
        if request.kind == "unknown":
            return status(404, {"message": f"Invalid URL (POST {request.path})"})
        for parameter, behaviour in self._refused.items():
            if parameter in request.body:
                return behaviour
        form = request.body.get("response_format", {}).get("type")
        if self.flavour == "plain" and form:
            return refused("response_format", "vllm")
        if self.flavour == "deepseek" and form == "json_schema":
            return refused("response_format", "deepseek")
        # OpenAI and DeepSeek both insist on the word.
        said = json.dumps(request.body.get("messages", ""))
        if form == "json_object" and "json" not in said.lower():
            return status(
                400,
                {
                    "message": "Prompt must contain the word 'json' in some form to use "
                    "'response_format' of type 'json_object'."
                },
            )
        return None


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], models: ModelServer) -> None:
        self.models = models
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that is gone is what some tests are about.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _ClientGoneError(ConnectionError):
    """The client broke off its request."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _HttpServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        request_body = json.loads(self.rfile.read(length))
        headers = {name.lower(): value for name, value in self.headers.items()}
        kind = _kind(self.path, request_body)
        request = Request(kind, self.path, headers, request_body)
        models = self.server.models
        behaviour = models._begin(request)
        try:
            self._behave(behaviour, request)
        except _ClientGoneError:
            models._abort()
            self.close_connection = True
        finally:
            models._end()

    def _behave(self, behaviour: Behaviour, request: Request) -> None:
        models = self.server.models
        name, value = behaviour.name, behaviour.value
        self._wait(models.delay)
        if name == "reset":
            self._reset()
        elif name == "status":
            code, error_body, headers = value
            self._send(code, error_body, headers)
        elif name == "silence":
            self._wait(value)
            self._send(200, self._good(request))
        elif name == "drip":
            self._drip(value, self._good(request))
        elif name == "web_page":
            self._send_bytes(200, b"<html>Welcome</html>", {"Content-Type": "text/html"})
        elif name == "flood":
            megabytes, code = value
            self._flood(megabytes, code)
        elif name == "encoded":
            encoding, whole, megabytes = value
            self._flood(megabytes, 200, whole, {"Content-Encoding": encoding})
        elif name == "raw":
            self._send_bytes(200, value.encode(), {"Content-Type": "application/json"})
        elif name == "reset_in_body":
            whole = json.dumps(self._good(request)).encode()
            self._head(200, {"Content-Length": str(len(whole))})
            self.wfile.write(whole[: len(whole) // 2])
            self._reset()
        elif name == "body":
            self._send(200, value)
        else:
            self._send(200, _change(self._good(request), name, value))

    def _good(self, request: Request) -> JsonObject:
        models = self.server.models
        asked = request.body
        if request.kind == "embedding":
            texts = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
            length = asked.get("dimensions", models.dimensions)
            vectors = (
                models.embed(texts)
                if models.embed
                else [hashed_vector(text, length) for text in texts]
            )
            tokens = sum(len(_WORDS.findall(text)) for text in texts)
            return {
                "object": "list",
                "model": asked["model"],
                "data": [
                    {"object": "embedding", "index": index, "embedding": list(map(float, vector))}
                    for index, vector in enumerate(vectors)
                ],
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        if request.kind == "rerank":
            wanted = set(_WORDS.findall(asked["query"].lower()))
            scores = [
                len(wanted & set(_WORDS.findall(text.lower()))) / max(1, len(wanted))
                for text in asked["documents"]
            ]
            best = sorted(range(len(scores)), key=lambda index: -scores[index])
            results = [{"index": index, "relevance_score": scores[index]} for index in best]
            return {"id": "rerank-1", "results": results[: asked.get("top_n", len(results))]}
        payload = _payload(asked)
        if request.kind == "chat":
            said: Any = {"answer": 42}
        else:
            said = getattr(models.answers, request.kind)(payload)
        text = json.dumps(said, ensure_ascii=False)
        prompt = len(json.dumps(asked["messages"])) // 4
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": asked["model"],
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text, "refusal": None},
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": len(text) // 4,
                "total_tokens": prompt + len(text) // 4,
            },
        }

    def _wait(self, seconds: float) -> None:
        """Wait, and notice a client that goes away."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.server.models._closing.is_set():
            readable, _, _ = select.select([self.connection], [], [], min(left, 0.05))
            if not readable:
                continue
            try:
                if self.connection.recv(1, socket.MSG_PEEK):
                    # The next request on this connection, which its turn comes for.
                    time.sleep(min(left, 0.05))
                    continue
            except OSError:
                pass
            raise _ClientGoneError

    def _drip(self, seconds: float, value: JsonObject) -> None:
        self._head(200, {"Transfer-Encoding": "chunked"})
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._write(b"1\r\n\n\r\n")
            self._wait(0.05)
        whole = json.dumps(value).encode()
        self._write(f"{len(whole):x}\r\n".encode() + whole + b"\r\n0\r\n\r\n")

    def _flood(
        self,
        megabytes: int,
        code: int,
        beginning: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        length = len(beginning) + megabytes * _MEGABYTE
        self._head(code, {**(headers or {}), "Content-Length": str(length)})
        self._write(beginning)
        for _ in range(megabytes):
            self._write(b" " * _MEGABYTE)

    def _reset(self) -> None:
        # With nothing to linger for, closing sends RST.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.wfile.flush()
        self.connection.close()
        self.close_connection = True

    def _send(self, code: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        whole = json.dumps(value, ensure_ascii=False).encode()
        self._send_bytes(code, whole, {"Content-Type": "application/json", **(headers or {})})

    def _send_bytes(self, code: int, whole: bytes, headers: Mapping[str, str]) -> None:
        self._head(code, {**headers, "Content-Length": str(len(whole))})
        self._write(whole)

    def _head(self, code: int, headers: Mapping[str, str]) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _write(self, data: bytes) -> None:
        try:
            self.wfile.write(data)
        except OSError as error:
            raise _ClientGoneError from error

    def finish(self) -> None:
        # After a reset there is nothing to flush to.
        with contextlib.suppress(OSError, ValueError):
            super().finish()


def _kind(path: str, asked: JsonObject) -> str:
    if path.endswith("/embeddings"):
        return "embedding"
    if path.endswith("/rerank"):
        return "rerank"
    if not path.endswith("/chat/completions"):
        return "unknown"
    schema = (asked.get("response_format") or {}).get("json_schema") or {}
    if schema.get("name") in ("extraction", "question_entities", "choice"):
        return str(schema["name"])
    payload = _payload(asked)
    if "candidates" in payload:
        return "choice"
    if "entity_types" in payload:
        return "extraction"
    return "question_entities" if "question" in payload else "chat"


def _payload(asked: JsonObject) -> JsonObject:
    """What the first user's message asks, in JSON."""
    for message in asked.get("messages", []):
        start = message["content"].find("{")
        if message["role"] != "user" or start < 0:
            continue
        with contextlib.suppress(ValueError):
            value, _ = json.JSONDecoder().raw_decode(message["content"], start)
            return dict(value)
    return {}


def _error(error: Any) -> JsonObject:
    if isinstance(error, str):
        return {"error": {"message": error, "type": "error", "param": None, "code": None}}
    return {"error": error} if "message" in error else dict(error)


def _change(good: JsonObject, name: str, value: Any) -> JsonObject:
    """Spoil a good answer."""
    if name == "good":
        return good
    if name == "no_usage":
        return {**good, "usage": None}
    if name == "no_choices":
        return {**good, "choices": []}
    if "data" in good:
        return {**good, "data": _change_vectors(good["data"], name, value)}
    if "results" in good:
        if name != "wrong_ids":
            raise ValueError(f"A reranker cannot behave like this: {name}")
        wrong = [{"index": index, "relevance_score": 9.0} for index in (-1, 10_000, None)]
        return {**good, "results": [*wrong, *good["results"], *good["results"]]}
    choice = good["choices"][0]
    message, reason = choice["message"], choice["finish_reason"]
    text = message["content"]
    if name == "content":
        message = {**message, "content": value}
    elif name == "truncated":
        message, reason = {**message, "content": text[: len(text) * 2 // 3]}, "length"
    elif name == "wrapped":
        message = {**message, "content": value.replace("@@", text)}
    elif name == "null_fields":
        message = {**message, "content": json.dumps(_with_nulls(json.loads(text)))}
    elif name == "wrong_ids":
        chosen = json.loads(text)["chosen"]
        wrong = [0, -3, 10_000, *chosen, *chosen, "seven", None]
        message = {**message, "content": json.dumps({"chosen": wrong})}
    elif name == "refusal":
        message = {**message, "content": None, "refusal": "I cannot help with that."}
    elif name == "content_parts":
        message = {**message, "content": [{"type": "text", "text": text}]}
    else:
        raise ValueError(f"A language model cannot behave like this: {name}")
    return {**good, "choices": [{**choice, "message": message, "finish_reason": reason}]}


def _change_vectors(data: list[JsonObject], name: str, value: Any) -> list[JsonObject]:
    if name == "wrong_dimension":
        return [{**entry, "embedding": entry["embedding"][:-1]} for entry in data]
    if name == "too_few_vectors":
        return data[:-1]
    if name == "vector_of":
        return [*data[:-1], {**data[-1], "embedding": [value] * len(data[-1]["embedding"])}]
    if name == "shuffled":
        return data[::-1]
    if name == "repeated_index":
        return [{**entry, "index": 0} for entry in data]
    if name == "without_index":
        return [{"embedding": entry["embedding"]} for entry in data]
    raise ValueError(f"An embedding model cannot behave like this: {name}")


def _with_nulls(said: JsonObject) -> JsonObject:
    """Set to null what can be missed: all of an extraction but the names."""
    entities = said.get("entities")
    if entities and isinstance(entities[0], dict):
        only_names = [dict.fromkeys(entity) | {"name": entity["name"]} for entity in entities]
        return {**said, "title": None, "content": None, "entities": only_names}
    return said


def main() -> None:
    """Serve recorded answers until interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument(
        "--answers", type=Path, required=True, help="directory with corpus.jsonl, extraction.jsonl"
    )
    parser.add_argument(
        "--embeddings",
        choices=["local", "hashed"],
        default="local",
        help="bge-small-en-v1.5 without prefixes, or hashed words",
    )
    parser.add_argument(
        "--flavour", choices=["openai", "vllm", "deepseek", "plain"], default="openai"
    )
    parser.add_argument("--delay", type=float, default=0.0, help="seconds that each request takes")
    arguments = parser.parse_args()
    embed = None
    if arguments.embeddings == "local":
        from sag_pg.models.local_embedding import bge_small_en

        # The prefix of questions is the client's business here, as with any such server.
        embed = bge_small_en().embed_passages
    server = ModelServer(
        flavour=arguments.flavour,
        answers=RecordedAnswers(arguments.answers),
        embed=embed,
        delay=arguments.delay,
        port=arguments.port,
    )
    server.start()
    print(server.url, flush=True)  # noqa: T201
    try:
        while True:
            time.sleep(60)
            counts = {kind: server.count(kind) for kind in {r.kind for r in server.requests}}
            print(json.dumps(counts), file=sys.stderr, flush=True)  # noqa: T201
    except KeyboardInterrupt:
        server.close()


if __name__ == "__main__":
    main()
