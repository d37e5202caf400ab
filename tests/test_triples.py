"""What a language model once extracted, as events and as triples."""

import json
from pathlib import Path
from typing import Any

import pytest

from sag_pg.dataset import Dataset, load_dataset
from sag_pg.errors import LoadError, ModelError
from sag_pg.models.base import Extraction, Passage
from sag_pg.recorded_extraction import RecordedExtractor, load_recorded
from sag_pg.triples import Triples, passage_of

CORPUS = [
    {"id": "a#1", "title": "Alpha Corp", "text": "Alpha Corp was bought\n by Gamma Group."},
    {"id": "b", "title": "Gamma Group", "text": "Its head is Nora Quist."},
    {"id": "c", "title": "Zebra", "text": "It has stripes."},
]
RECORDING: list[dict[str, Any]] = [
    {"id": "c", "entities": [], "triples": []},
    {
        "id": "a#1",
        "entities": ["alpha corp", "gamma group"],
        "triples": [
            ["alpha corp", "was bought by", "gamma group"],
            ["alpha corp", "was  bought by", " gamma group"],
            ["alpha corp", "is", "alpha corp"],
        ],
    },
    {
        "id": "b",
        "entities": ["gamma group", "nora quist", " "],
        "triples": [["gamma group", "", "nora quist"], ["", "is", "head"], ["head", "is", " "]],
    },
    {"id": "not here", "entities": ["x"], "triples": [["x", "is", "y"]]},
]


def write(directory: Path, recording: list[Any] | None) -> Dataset:
    questions = [{"id": "1", "question": "Who?", "supporting": ["b"]}]
    for name, records in (
        ("corpus", CORPUS),
        ("questions", questions),
        ("extraction", recording),
    ):
        if records is not None:
            lines = "".join(json.dumps(record) + "\n" for record in records)
            (directory / f"{name}.jsonl").write_text(lines)
    return load_dataset(directory)


def names(extraction: Extraction) -> dict[str, bool]:
    return {entity.name: entity.is_subject for entity in extraction.entities}


def test_events_have_the_recorded_entities(tmp_path: Path) -> None:
    dataset = write(tmp_path, RECORDING)
    extractor = RecordedExtractor(dataset, load_recorded(dataset))
    passages = [Passage(each["title"], " ".join(each["text"].split())) for each in CORPUS]
    extractions = extractor.extract(passages)
    assert [names(each) for each in extractions] == [
        {"alpha corp": True, "gamma group": False},
        {"gamma group": True, "nora quist": False},
        {},
    ]
    assert {each.event_text for each in extractions} == {None}
    with pytest.raises(ModelError, match="Nothing is recorded for the passage 'Zebra'"):
        extractor.extract([Passage("Zebra", "It has spots.")])


def test_each_triple_is_a_document(tmp_path: Path) -> None:
    triples = Triples(load_recorded(write(tmp_path, RECORDING)))
    documents = list(triples.documents())
    assert [(each.source, each.title, "".join(each.read())) for each in documents] == [
        ("a#1#1", "", "alpha corp was bought by gamma group"),
        ("a#1#2", "", "alpha corp is alpha corp"),
        ("b#1", "", "gamma group nora quist"),
    ]
    assert len(triples) == 3
    assert triples.size == sum(len("".join(each.read())) for each in documents)
    assert [passage_of(each.source) for each in documents] == ["a#1", "a#1", "b"]
    extractions = triples.extract([Passage("", "".join(each.read())) for each in documents])
    assert [names(each) for each in extractions] == [
        {"alpha corp": True, "gamma group": False},
        {"alpha corp": True},
        {"gamma group": True, "nora quist": False},
    ]
    with pytest.raises(ModelError, match="No triple is recorded as 'x is y'"):
        triples.extract([Passage("", "x is y")])


def test_another_recording_has_another_name(tmp_path: Path) -> None:
    dataset = write(tmp_path, RECORDING)
    recorded = load_recorded(dataset)
    write(tmp_path, [*RECORDING, {"id": "d", "entities": [], "triples": []}])
    other = load_recorded(dataset)
    assert Triples(recorded).name != Triples(other).name
    assert RecordedExtractor(dataset, recorded).name != RecordedExtractor(dataset, other).name


@pytest.mark.parametrize(
    ("recording", "message"),
    [
        (None, "has no recorded extraction"),
        (RECORDING[1:], "leaves out passage c"),
        ([{"id": "c", "triples": []}], r"extraction.jsonl:1: entities is not"),
        ([{"id": "c", "entities": [1], "triples": []}], r"extraction.jsonl:1: entities is not"),
        ([{"id": "c", "entities": []}], r"extraction.jsonl:1: triples is not"),
        ([{"id": "c", "entities": [], "triples": [["a", "b"]]}], r":1: triples is not"),
        ([{"entities": [], "triples": []}], r"extraction.jsonl:1: id is not"),
        ([*RECORDING, "x"], r"extraction.jsonl:5: not a JSON object"),
    ],
)
def test_bad_recordings(tmp_path: Path, recording: list[Any] | None, message: str) -> None:
    dataset = write(tmp_path, recording)
    with pytest.raises(LoadError, match=message) as caught:
        load_recorded(dataset)
    assert caught.value.hint
