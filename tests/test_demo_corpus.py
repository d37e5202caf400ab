"""The demo corpus keeps its promises: complete, consistent, and several hops deep."""

import json
import re
from collections import Counter
from importlib.resources.abc import Traversable
from itertools import pairwise
from typing import Any

import pytest

from sag_pg.demo import CORPUS, QUESTIONS

CJK_RUN = re.compile(r"[\u4e00-\u9fff]+")
CAPITALISED_PHRASE = re.compile(r"\b[A-Z]\w*(?: [A-Z]\w*)*")
SHORTEST_CJK_NAME = 3
# A name in more documents than this joins everything to everything and leads nowhere.
MOST_DOCUMENTS_PER_NAME = 6


def read_lines(file: Traversable) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


DOCUMENTS = {document["id"]: document for document in read_lines(CORPUS)}
QUESTION_LIST = read_lines(QUESTIONS)

each_document = pytest.mark.parametrize("document", DOCUMENTS.values(), ids=lambda d: d["id"])
each_question = pytest.mark.parametrize("question", QUESTION_LIST, ids=lambda q: q["id"])


def full_text(document: dict[str, Any]) -> str:
    return f"{document['title']}\n{document['text']}"


def evidence(question: dict[str, Any]) -> list[dict[str, Any]]:
    return [DOCUMENTS[document_id] for document_id in question["supporting"]]


def language(question: dict[str, Any]) -> str:
    return "zh" if CJK_RUN.search(question["question"]) else "en"


LOWER_CASE_WORDS = {
    word
    for document in DOCUMENTS.values()
    for word in re.findall(r"\b[a-z]\w*", full_text(document))
}


def possible_names(document: dict[str, Any]) -> set[str]:
    """Capitalised phrases that are not just a sentence's first word, and all runs of Chinese."""
    text = full_text(document)
    phrases = {
        phrase
        for phrase in CAPITALISED_PHRASE.findall(text)
        if phrase.lower() not in LOWER_CASE_WORDS
    }
    runs = {
        run[start:end]
        for run in CJK_RUN.findall(text)
        for start in range(len(run))
        for end in range(start + SHORTEST_CJK_NAME, len(run) + 1)
    }
    return phrases | runs


DOCUMENTS_PER_NAME = Counter(
    name for document in DOCUMENTS.values() for name in possible_names(document)
)


def shared_names(first: dict[str, Any], second: dict[str, Any]) -> set[str]:
    return {
        name
        for name in possible_names(first) & possible_names(second)
        if DOCUMENTS_PER_NAME[name] <= MOST_DOCUMENTS_PER_NAME
    }


@pytest.mark.parametrize("file", [CORPUS, QUESTIONS], ids=lambda file: file.name)
def test_ids_are_unique(file: Traversable) -> None:
    ids = [row["id"] for row in read_lines(file)]
    assert len(ids) == len(set(ids))


def test_both_languages_are_well_represented() -> None:
    documents = Counter(document["metadata"]["lang"] for document in DOCUMENTS.values())
    questions = Counter(language(question) for question in QUESTION_LIST)
    assert documents == {"en": 25, "zh": 17}
    assert questions == {"en": 6, "zh": 4}


@each_document
def test_document_has_exactly_the_expected_fields(document: dict[str, Any]) -> None:
    assert document.keys() == {"id", "title", "text", "metadata"}
    metadata = document["metadata"]
    assert metadata.keys() == {"lang", "year", "kind"}
    assert document["id"].startswith(f"demo/{metadata['lang']}/")
    assert isinstance(metadata["year"], int)
    assert metadata["kind"].islower()
    for value in (document["title"], document["text"]):
        assert value
        assert value == value.strip()


@each_document
def test_document_is_short_and_in_its_language(document: dict[str, Any]) -> None:
    text = document["text"]
    if document["metadata"]["lang"] == "en":
        assert not CJK_RUN.search(text)
        assert 60 <= len(text.split()) <= 130
    else:
        chinese = sum(map(len, CJK_RUN.findall(text)))
        assert chinese > len(text) / 2
        assert 80 <= len(text) <= 200


@each_question
def test_question_has_two_or_three_hops_in_its_own_language(question: dict[str, Any]) -> None:
    assert question.keys() == {"id", "question", "answer", "supporting", "hops"}
    supporting = question["supporting"]
    assert question["hops"] == len(supporting) == len(set(supporting))
    assert 2 <= question["hops"] <= 3
    assert set(supporting) <= DOCUMENTS.keys()
    assert {d["metadata"]["lang"] for d in evidence(question)} == {language(question)}


@each_question
def test_answer_stands_only_at_the_end_of_the_chain(question: dict[str, Any]) -> None:
    *earlier, last = evidence(question)
    assert question["answer"] in last["text"]
    assert not [d["id"] for d in earlier if question["answer"] in full_text(d)]


@each_question
def test_question_names_what_the_first_document_is_about(question: dict[str, Any]) -> None:
    first, *later = evidence(question)
    subject = first["title"].removesuffix(" (film)")
    assert subject in question["question"]
    assert not [d["id"] for d in later if subject in full_text(d)]


@each_question
def test_consecutive_documents_share_a_name(question: dict[str, Any]) -> None:
    for first, second in pairwise(evidence(question)):
        assert shared_names(first, second), f"{first['id']} does not lead to {second['id']}"


@pytest.mark.parametrize(
    "question", [q for q in QUESTION_LIST if q["hops"] > 2], ids=lambda q: q["id"]
)
def test_no_name_skips_the_middle_document(question: dict[str, Any]) -> None:
    first, *_, last = evidence(question)
    if last["metadata"]["kind"] == "person":
        pytest.skip("a person's page names the employer, as the first document does")
    assert not shared_names(first, last)


def test_the_questions_of_the_paper_are_asked_in_both_languages() -> None:
    chains = {question["question"]: question for question in QUESTION_LIST}
    english = chains["Which project did the CTO of the company that acquired Company B join later?"]
    chinese = chains["收购 Company B 的那家公司的 CTO 后来加入了哪个项目？"]
    assert english["hops"] == chinese["hops"] == 3
    for question, given_away in ((english, ("CTO", "join", "acqui")), (chinese, ("收购", "加入"))):
        last = full_text(evidence(question)[-1])
        assert not [word for word in given_away if word in last]
