"""sql/text and the text functions of the migrations: names, lexemes, Chinese, and hostile input."""

import time
import unicodedata
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from corpus import column, fresh_database, value

Connection = psycopg.Connection[Any]

LONG_WORD = "x" * 100_000


@pytest.fixture(scope="module")
def texts(postgresql_noproc: Any) -> Iterator[Connection]:
    with fresh_database(postgresql_noproc, "sag_text") as connection:
        connection.autocommit = True
        yield connection


def fold(connection: Connection, text: str) -> Any:
    return value(connection, "SELECT sag.fold_text(%s)", text)


def normalize(connection: Connection, name: str) -> Any:
    return value(connection, "SELECT sag.normalize_entity(%s)", name)


def found(
    connection: Connection, question: str, text: str, configuration: str = "pg_catalog.english"
) -> set[str]:
    """The question's lexemes that the text has."""
    return set(
        column(
            connection,
            "SELECT x FROM unnest(sag.question_lexemes(%s::text::regconfig, %s)) AS x"
            " WHERE sag.text_vector(%s::text::regconfig, %s) @@ sag.lexeme_query(x)",
            configuration,
            question,
            configuration,
            text,
        )
    )


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("", ""),
        ("  Two\tlines\n\nand  spaces ", "two lines and spaces"),
        ("ÉCOLE Straße", "école straße"),
        ("ＧＰＴ－４ ｆｕｌｌ", "gpt 4 full"),
        ("ﬁ ligature ①", "fi ligature 1"),
        ("zero\u200bwidth soft\u00adhyphen \ufeffbom", "zerowidth softhyphen bom"),
        ("\u200fעברית\u200e \u202babc\u202c \u2066d\u2069", "עברית abc d"),
        ("C++ and C# but 1 + 2, # 3", "c++ and c# but 1 2 3"),
        ("snake_case", "snake_case"),
        ("emoji 🎉 gone", "emoji gone"),
        ("हिन्दी में", "हिन्दी में"),
        ("مُحَمَّد بن سلمان", "مُحَمَّد بن سلمان"),
        ("ภาษาไทยที่", "ภาษาไทยที่"),
        ("Cafe\u0301", "café"),
        ('it\'s "quoted" 100%', "it s quoted 100"),
        (r"back\slash $$ dollar", "back slash dollar"),
    ],
)
def test_fold_text(texts: Connection, text: str, folded: str) -> None:
    assert fold(texts, text) == unicodedata.normalize("NFKC", folded)


@pytest.mark.parametrize(
    ("name", "normalized"),
    [
        ("The Beatles", "beatles"),
        ("A Tale of Two Cities", "tale of two cities"),
        ("an Apple", "apple"),
        ("The", "the"),
        ("The A", "the a"),
        ("A 1", "a 1"),
        ("Theodore", "theodore"),
        ("Lothair II's", "lothair ii"),
        ("Lothair II’s", "lothair ii"),
        ("NASA'S", "nasa"),
        ("James'", "james"),
        ("“Jones’s”,", "jones"),
        ("Levi's Stadium", "levi s stadium"),
        ("C++", "c++"),
        ("C#", "c#"),
        ("C", "c"),
        ("!!!", "!!!"),
        ("  !!!  ", "!!!"),
        ("?", "?"),
        ("", ""),
        (" \t\n ", ""),
        ("\u200b\u200f\ufeff", ""),
        ("! \t !", "! !"),
        ("'s", "'s"),
        ("U.S.A.", "u s a"),
        ("Ａｐｐｌｅ", "apple"),
        ("Spider-Man (film)", "spider man film"),
        ("ΟΔΥΣΣΕΥΣ", "οδυσσευσ"),
        ("हिन्दी", "हिन्दी"),
        ("مُحَمَّد", "مُحَمَّد"),
        ("\u200fשלום\u200f", "שלום"),
        ("zero\u200bwidth", "zerowidth"),
        ("收购", "收购"),
        ("🎉", "🎉"),
    ],
)
def test_normalize_entity(texts: Connection, name: str, normalized: str) -> None:
    assert normalize(texts, name) == unicodedata.normalize("NFKC", normalized)


@pytest.mark.parametrize(
    "name",
    [
        "The Beatles",
        "Lothair II’s",
        "C++",
        "!!!",
        "ＧＰＴ－４",
        "हिन्दी",
        "Jones's house",
        "İstanbul",
    ],
)
def test_normalized_name_is_its_own_normalization(texts: Connection, name: str) -> None:
    once = normalize(texts, name)
    assert normalize(texts, once) == once


def test_case_is_unicode_whatever_the_locale_of_the_argument(texts: Connection) -> None:
    assert value(texts, """SELECT sag.normalize_entity('ÉCOLE' COLLATE "C")""") == "école"


@pytest.mark.parametrize(
    ("text", "lexemes"),
    [
        ("收购", {"收购"}),
        ("公司收购", {"公司", "司收", "收购"}),
        ("A公司B", {"a", "公司", "b"}),
        ("我", {"我"}),
        ("东京タワー", {"东京", "京タ", "タワ", "ワー"}),
        ("한국어 텍스트", {"한국", "국어", "텍스", "스트"}),
        ("加入GPT-4项目", {"加入", "gpt", "4", "项目"}),
        ("𠀀𠀁𠀂", {"𠀀𠀁", "𠀁𠀂"}),
        ("no ideograph", {"no", "ideograph"}),
        ("", set()),
    ],
)
def test_runs_of_chinese_japanese_korean_become_overlapping_bigrams(
    texts: Connection, text: str, lexemes: set[str]
) -> None:
    vector = column(texts, "SELECT unnest(tsvector_to_array(sag.text_vector('simple', %s)))", text)
    assert set(vector) == lexemes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2019年星辰科技完成了对蓝海数据的收购事宜", {"收购"}),
        ("她主导的新项目将于明年启动", {"项目"}),
        ("这里没有别的", set()),
    ],
)
def test_question_in_two_scripts_finds_words_inside_longer_runs(
    texts: Connection, text: str, expected: set[str]
) -> None:
    question = "收购 Company B 的那家公司的 CTO 后来加入了哪个项目"
    assert found(texts, question, text) == expected


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("What is GPT-4?", "OpenAI released GPT-4 in 2023"),
        ("gpt 4", "the GPT-4 model"),
        ("GPT-4", "the GPT 4 model"),
        ("the X-47B", "Northrop Grumman X-47B"),
        ("input/output", "input and output"),
        ("Jean–Luc", "Jean-Luc"),
        ("snake_case", "snake case"),
        ("ＦＵＬＬｗｉｄｔｈ", "fullwidth"),
        ("GPT-4", "使用GPT-4模型"),
    ],
)
def test_hyphens_slashes_and_model_numbers(texts: Connection, question: str, text: str) -> None:
    asked = set(column(texts, "SELECT unnest(sag.question_lexemes('english', %s))", question))
    assert asked
    assert found(texts, question, text) == asked


def test_words_of_100_kb_do_not_stop_the_words_beside_them(texts: Connection) -> None:
    assert found(texts, "needle", f"{LONG_WORD} needle") == {"needl"}
    assert fold(texts, LONG_WORD) == LONG_WORD
    # Only the beginning of a question is read.
    assert column(
        texts, "SELECT unnest(sag.question_lexemes('english', %s))", f"needle {LONG_WORD}"
    ) == ["needl"]


@pytest.mark.parametrize(
    "text", ["word " * 20_000, "收购" * 50_000, "+#" * 50_000, "'" * 100_000, "\u0301" * 100_000]
)
def test_100_000_characters_take_no_more_than_a_moment(texts: Connection, text: str) -> None:
    started = time.monotonic()
    for query in (
        "SELECT sag.fold_text(%s)",
        "SELECT sag.normalize_entity(%s)",
        "SELECT sag.text_vector('english', %s)",
        "SELECT sag.fold_tokens(%s)",
    ):
        value(texts, query, text)
    assert time.monotonic() - started < 5


def test_stop_words_are_no_lexemes(texts: Connection) -> None:
    assert value(texts, "SELECT sag.question_lexemes('english', 'what is the')") == []
    assert value(texts, "SELECT sag.question_lexemes('english', NULL)") is None


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Who founded Acme?", ["who", "founded", "acme"]),
        ("星辰科技", ["星\x1f", "辰\x1f", "科\x1f", "技"]),
        ("A公司 b", ["a\x1f", "公\x1f", "司", "b"]),
        ("", []),
        ("!!!", []),
    ],
)
def test_fold_tokens(texts: Connection, text: str, tokens: list[str]) -> None:
    assert value(texts, "SELECT sag.fold_tokens(%s)", text) == tokens


@pytest.mark.parametrize(
    "text",
    [
        "Who founded Acme?",
        "收购 Company B 的那家公司的 CTO 后来加入了哪个项目",
        "A公司 b C++中文",
        "한국어와 English",
        "unit\x1fseparator",
        "𠀀x𠀁",
        "हिन्दी 中文 مُحَمَّد",
    ],
)
def test_join_tokens_restores_the_folded_text(texts: Connection, text: str) -> None:
    assert value(texts, "SELECT sag.join_tokens(sag.fold_tokens(%s))", text) == fold(texts, text)


def test_a_run_of_tokens_is_a_name_wherever_it_is_cut(texts: Connection) -> None:
    tokens = value(texts, "SELECT sag.fold_tokens('收购Company B的公司')")
    joined = {
        value(texts, "SELECT sag.join_tokens(%s)", tokens[start:end])
        for start in range(len(tokens))
        for end in range(start + 1, len(tokens) + 1)
    }
    assert {"收购", "company b", "公司", "购company"} <= joined


@pytest.mark.parametrize(
    "lexeme",
    ["o'brien", "back\\slash", "'", "''", "\\", "$$", "100%", "🎉", "a & b", "x:*", "!a", " "],
)
def test_lexeme_query_matches_exactly_its_lexeme(texts: Connection, lexeme: str) -> None:
    matches = "SELECT array_to_tsvector(ARRAY[%s]) @@ sag.lexeme_query(%s)"
    assert value(texts, matches, lexeme, lexeme) is True
    assert value(texts, matches, lexeme + "x", lexeme) is False
    assert value(texts, "SELECT numnode(sag.lexeme_query(%s))", lexeme) == 1
