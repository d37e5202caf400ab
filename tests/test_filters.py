"""Conditions in SQL's words on metadata: they mean to jsonpath what they mean to PostgreSQL."""

import json
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from corpus import Connection, column, fresh_database, merge, passage, value
from hypothesis import given, settings
from hypothesis import strategies as st

from sag_pg import cli, config, migrate
from sag_pg.client import Client
from sag_pg.errors import ConfigurationError
from sag_pg.filters import join_filters, translate_where


@pytest.fixture(scope="module")
def database(postgresql_noproc: Any) -> Iterator[Connection]:
    with fresh_database(postgresql_noproc, "sag_filters") as connection:
        connection.autocommit = True
        yield connection


def matching(connection: Connection, where: str, *metadata: Any) -> list[Any]:
    """Those of the metadata that a condition lets through."""
    return column(
        connection,
        "SELECT m.metadata FROM jsonb_array_elements(%s::jsonb) AS m (metadata)"
        " WHERE m.metadata @@ %s::jsonpath",
        json.dumps(metadata),
        translate_where(where),
    )


# --- The same as in SQL --------------------------------------------------------------------------

# Columns of each type, as a condition calls them, with where they stand in the metadata.
NUMBERS = {"num": ("num",), "author.born": ("author", "born")}
TEXTS = {
    "lang": ("lang",),
    "author.name": ("author", "name"),
    '"Some ""key"".x"': ('Some "key".x',),
    "作者": ("作者",),
}
FLAGS = {"archived": ("archived",)}
LISTS = {"tags": ("tags",)}

# What PostgreSQL is given: the same metadata in typed columns, NULL where another type stands.
TYPED = """
    SELECT m.metadata @@ %s::jsonpath IS TRUE AS here, ({where}) IS TRUE AS there, m.metadata
    FROM jsonb_array_elements(%s::jsonb) AS m (metadata)
    CROSS JOIN LATERAL (
        SELECT
            CASE WHEN jsonb_typeof(m.metadata -> 'num') = 'number'
                THEN (m.metadata ->> 'num')::numeric END AS num,
            CASE WHEN jsonb_typeof(m.metadata -> 'lang') = 'string'
                THEN m.metadata ->> 'lang' END AS lang,
            CASE WHEN jsonb_typeof(m.metadata -> 'Some "key".x') = 'string'
                THEN m.metadata ->> 'Some "key".x' END AS "Some ""key"".x",
            CASE WHEN jsonb_typeof(m.metadata -> '作者') = 'string'
                THEN m.metadata ->> '作者' END AS 作者,
            CASE WHEN jsonb_typeof(m.metadata -> 'archived') = 'boolean'
                THEN (m.metadata ->> 'archived')::boolean END AS archived,
            CASE WHEN jsonb_typeof(m.metadata -> 'tags') = 'array' THEN ARRAY(
                SELECT CASE WHEN jsonb_typeof(t.tag) = 'string' THEN t.tag #>> '{{}}' END
                FROM jsonb_array_elements(m.metadata -> 'tags') AS t (tag)
            ) END AS tags,
            nullif(m.metadata -> 'value', 'null') AS value
    ) AS typed
    CROSS JOIN LATERAL (
        SELECT
            CASE WHEN jsonb_typeof(m.metadata #> '{{author,born}}') = 'number'
                THEN (m.metadata #>> '{{author,born}}')::numeric END AS born,
            CASE WHEN jsonb_typeof(m.metadata #> '{{author,name}}') = 'string'
                THEN m.metadata #>> '{{author,name}}' END AS name
    ) AS author
"""

# Characters that mean something to LIKE, to regular expressions, to jsonpath or to SQL, some that
# take two cases, several bytes or two UTF-16 units, and plain ones.
words = st.text("aAbéÉ日😀%_\\.*+?()[]{}^$|\"'/@\n\t \x01\x7f", max_size=4)
numbers = st.one_of(
    st.integers(-3, 3), st.sampled_from(["0.5", "-0.50", ".5", "1.", "1e0", "20e-1", "1E3"])
)
quoted = words.map(lambda text: "'" + text.replace("'", "''") + "'")
number_texts = numbers.map(str)


# Patterns whose wildcards have another escape than a backslash.
escaped_words = quoted.map(lambda text: re.sub("[%_]", r"!\\g<0>", text))


@st.composite
def patterns(draw: st.DrawFn) -> str:
    text = draw(words)
    if (len(text) - len(text.rstrip("\\"))) % 2:
        text += "\\"
    return "'" + text.replace("'", "''") + "'"


@st.composite
def leaves(draw: st.DrawFn) -> str:
    columns, values = draw(
        st.sampled_from(
            [
                (NUMBERS, number_texts),
                (TEXTS, quoted),
                (FLAGS, st.sampled_from(["TRUE", "false"])),
                (LISTS, quoted),
            ]
        )
    )
    name = draw(st.sampled_from([*columns]))
    no = draw(st.sampled_from(["", "NOT "]))
    operator = draw(st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="]))
    if columns is LISTS:
        forms = [f"{draw(values)} = ANY({name})"]
    else:
        several = ", ".join(draw(st.lists(values, min_size=1, max_size=3)))
        forms = [
            f"{name} {operator} {draw(values)}",
            f"{draw(values)} {operator} {name}",
            f"{name} {no}IN ({several})",
            f"{name} {no}BETWEEN {draw(values)} AND {draw(values)}",
        ]
    if columns is TEXTS:
        like = draw(st.sampled_from(["LIKE", "ILIKE"]))
        forms.append(f"{name} {no}{like} {draw(patterns())}")
        forms.append(f"{name} {no}{like} {draw(escaped_words)} ESCAPE '!'")
    if columns is FLAGS:
        forms += [name, f"{name} IS {no}{draw(st.sampled_from(['TRUE', 'FALSE']))}"]
    # Of any type, so that there is no other type to be null for.
    forms.append(f"value IS {no}NULL")
    return draw(st.sampled_from(forms))


# Without parentheses too, so that both must agree on what binds stronger.
conditions = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        inner.map(lambda text: f"NOT {text}"),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"NOT ({text})"),
        st.tuples(inner, inner).map(" AND ".join),
        st.tuples(inner, inner).map(" OR ".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}) AND NOT ({two[1]})"),
    ),
    max_leaves=6,
)

scalars = st.one_of(
    st.none(), st.booleans(), words, st.integers(-3, 3), st.sampled_from([0.5, -0.5, 1000])
)
metadata_objects = st.fixed_dictionaries(
    {},
    optional={
        "num": scalars,
        "lang": scalars,
        'Some "key".x': scalars,
        "作者": scalars,
        "archived": scalars,
        "value": st.one_of(scalars, st.lists(scalars, max_size=1), st.just({})),
        "tags": st.one_of(st.none(), st.lists(scalars, max_size=3)),
        "author": st.one_of(
            scalars, st.fixed_dictionaries({}, optional={"born": scalars, "name": scalars})
        ),
    },
)


@settings(max_examples=300, deadline=None)
@given(where=conditions, metadata=st.lists(metadata_objects, min_size=1, max_size=8))
def test_means_what_it_means_in_sql(
    database: Connection, where: str, metadata: list[dict[str, Any]]
) -> None:
    query = TYPED.format(where=where.replace("%", "%%"))
    rows = database.execute(
        query.encode(), [translate_where(where), json.dumps(metadata, ensure_ascii=False)]
    ).fetchall()
    wrong = [(data, here, there) for here, there, data in rows if here != there]
    assert wrong == [], f"{where}\n{translate_where(where)}"


# --- What SQL does not say -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        # An array matches by any of its elements, and NOT where none does.
        ("lang = 'en'", ["en", ["en", "zh"]]),
        ("lang IN ('zh', 'ja')", [["en", "zh"], ["zh", "de"], ["zh", 7]]),
        ("lang <> 'en'", ["de", ["zh", "de"], []]),
        ("NOT (lang = 'en')", ["de", ["zh", "de"], []]),
        ("lang NOT IN ('en', 'de')", [[]]),
        ("lang LIKE 'z%'", [["en", "zh"], ["zh", "de"], ["zh", 7]]),
        ("NOT lang LIKE 'z%'", ["en", "de", []]),
        ("lang IS NOT NULL", ["en", "de", ["en", "zh"], ["zh", "de"], [], ["zh", 7], 7]),
        ("lang = 7", [["zh", 7], 7]),
        # An element of another type makes the negation unknown.
        ("lang <> 8", [[], 7]),
    ],
)
def test_arrays(database: Connection, where: str, expected: list[Any]) -> None:
    values = ["en", "de", ["en", "zh"], ["zh", "de"], [], ["zh", 7], 7, None]
    found = matching(database, where, *({"lang": each} for each in values), {"year": 1})
    assert [each["lang"] for each in found] == expected


def test_null_is_missing_or_null(database: Connection) -> None:
    values = [{}, {"lang": None}, {"lang": []}, {"lang": [None]}, {"lang": {}}, {"lang": 0}]
    assert matching(database, "lang IS NULL", *values) == values[:2]
    assert matching(database, "lang IS NOT NULL", *values) == values[2:]
    assert matching(database, "lang.code IS NULL", *values) == values


def test_one_element_is_within_both_bounds(database: Connection) -> None:
    assert matching(database, "year BETWEEN 3 AND 5", {"year": [1, 9]}, {"year": [1, 4]}) == [
        {"year": [1, 4]}
    ]


def test_wildcards_take_line_ends(database: Connection) -> None:
    rows = [{"k": "a\n\nb"}, {"k": "a\nb"}, {"k": "ab"}, {"k": "a\n\nb\n"}, {"k": "x\na\n\nb"}]
    assert matching(database, "k LIKE 'a_%b'", *rows) == rows[:2]
    assert matching(database, "k ILIKE 'A__B'", *rows) == rows[:1]
    assert matching(database, "k LIKE '%b'", *rows) == [*rows[:3], rows[4]]


def test_dots_lead_into_arrays_of_objects(database: Connection) -> None:
    several = {"authors": [{"name": "Lu Xun"}, {"name": "Ba Jin"}]}
    assert matching(database, "authors.name = 'Ba Jin'", several, {"authors": []}) == [several]
    assert matching(database, "authors.name <> 'Ba Jin'", several) == []
    assert matching(database, "authors.name <> 'Mo Yan'", several) == [several]
    # A dot within quotes is part of the key.
    assert matching(database, '"a.b" = 1', {"a.b": 1}, {"a": {"b": 1}}) == [{"a.b": 1}]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("date >= '2024-01-01'", ["2024-01-31", "2024-01-31T12:00:00", "2025-06-01"]),
        ("date < DATE '2024-02-01'", ["2023-12-31", "2024-01-31", "2024-01-31T12:00:00"]),
        ("date > TIMESTAMP '2024-01-31 11:59'", ["2024-01-31T12:00:00", "2025-06-01"]),
        ("date BETWEEN DATE '2024-01-01' AND DATE '2024-12-31'",
         ["2024-01-31", "2024-01-31T12:00:00"]),
    ],
)  # fmt: skip
def test_dates_are_text(database: Connection, where: str, expected: list[str]) -> None:
    dates = ["2023-12-31", "2024-01-31", "2024-01-31T12:00:00", "2025-06-01"]
    found = matching(database, where, *({"date": each} for each in dates))
    assert [each["date"] for each in found] == expected


@pytest.mark.parametrize(
    ("where", "jsonpath"),
    [
        ("year = 2020", '$."year" == 2020'),
        ("Year >= -1.50", '$."Year" >= -1.50'),
        ("2020 < year", '$."year" > 2020'),
        ("lang LIKE 'e%'", '$."lang" starts with "e"'),
        ("lang LIKE 'en'", '$."lang" == "en"'),
        (r"lang LIKE 'e\%'", '$."lang" == "e%"'),
        ("NOT NOT archived", '$."archived" == true'),
        # De Morgan: the negation of <> is the equality that an index serves.
        ("NOT (a <> 1 OR b <> 2)", '($."a" == 1 && $."b" == 2)'),
        ("(((a)) = (1))", '$."a" == 1'),
        ("作者.\"名 字\" = '鲁迅'", '$."作者"."名 字" == "鲁迅"'),
    ],
)
def test_what_is_written(where: str, jsonpath: str) -> None:
    assert translate_where(where) == jsonpath


# --- Nothing else gets in ------------------------------------------------------------------------

STRANGE = [
    '" || true == true || $.x == "',
    "') OR TRUE --",
    "'; DROP TABLE sag.document; --",
    "\\",
    '\\"',
    "\\u0041",
    "\\' OR 1=1",
    "$",
    "$.a",
    "@",
    "a/*b*/c",
    "*",
    "x\ty\r\nz\x01\x1f\x7f\x85",
    "\u2028\u202e",
    "日本語😀",
    "%s %(x)s %%",
    "{0} {x}",
    "$1",
    ":x",
    "",
]


@pytest.mark.parametrize("text", STRANGE)
def test_strange_texts_and_keys_are_just_that(database: Connection, text: str) -> None:
    text_literal = "'" + text.replace("'", "''") + "'"
    hit, miss = {"k": text}, {"k": f"{text}!"}
    assert matching(database, f"k = {text_literal}", hit, miss, {}) == [hit]
    assert matching(database, f"k <> {text_literal}", hit, miss, {}) == [miss]
    assert matching(database, f"k IN ({text_literal}, 'zz')", hit, miss, {}) == [hit]
    if text:
        key = '"' + text.replace('"', '""') + '"'
        hit, miss = {text: 1}, {f"{text}!": 1}
        assert matching(database, f"{key} = 1", hit, miss, {}) == [hit]


@pytest.mark.parametrize(
    ("where", "part"),
    [
        ("year = 2020 AND lower(lang) = 'en'", "LOWER(lang) near character 17"),
        ("pg_sleep(10) IS NULL", "PG_SLEEP(10)"),
        ("id IN (SELECT 1)", "SELECT 1"),
        ("EXISTS (SELECT 1)", "EXISTS"),
        ("year = (SELECT 1)", "SELECT 1"),
        ("year::int = 3", "CAST(year AS INT)"),
        ("year = '3'::int", "CAST('3' AS INT)"),
        ("year = CAST('3' AS int)", "CAST('3' AS INT)"),
        ("at > TIMESTAMPTZ '2024-01-01'", "TIMESTAMPTZ"),
        ("at > TIMESTAMP '2024-01-01 10:00+02'", "a time zone"),
        ("at > DATE '2024-02-30'", "no such date"),
        ("at > CURRENT_DATE", "CURRENT_DATE"),
        ("at > INTERVAL '1 day'", "INTERVAL"),
        ("year + 1 = 2", "year + 1"),
        ("-year = 2", "-year"),
        ("- -2 = year", "- -2"),
        ("year = month", "month"),
        ("year = $1", "$1"),
        ("year = ?", "?"),
        ("year = :name", "name"),
        ("year = %s", "%s"),
        ("year = 1; DROP TABLE sag.document", "semicolon at character 9"),
        ("year = 1;", "semicolon"),
        ("year = 1 -- no more", "comment"),
        ("year /* here */ = 1", "comment"),
        ("year = 1 /* open", "cannot be read"),
        ("year = 1 UNION SELECT 2", "UNION (line 1, column 10, after year = 1)"),
        ("year = 1 ORDER BY lang", "ORDER BY"),
        ("SELECT 1", "SELECT"),
        ("year =", "year"),
        ("lang = 'en", "cannot be read"),
        ("from = 1", "from"),
        ("", "empty"),
        (" \n", "empty"),
        ("year = NULL", "NULL"),
        ("year IN (1, NULL)", "NULL"),
        ("TRUE", "TRUE"),
        ("1 = 1", "1"),
        ("'en'", "'en'"),
        ("year IN ()", "no values"),
        ("year IN (1, '1')", "number, string"),
        ("year BETWEEN 1 AND 'x'", "number, string"),
        ("year BETWEEN SYMMETRIC 1 AND 2", "symmetric"),
        ("(year, lang) = (1, 'en')", "(year, lang)"),
        ("year IN lang", "field"),
        ("tags[1] = 'x'", "tags[1]"),
        ("tags = ANY(ARRAY['x'])", "ARRAY['x']"),
        ("'x' <> ANY(tags)", "ANY(tags)"),
        ("'x' <> ALL(tags)", "ALL(tags)"),
        ("author->>'name' = 'x'", "->>"),
        ("lang ~ 'x'", "~"),
        ("lang SIMILAR TO 'x'", "SIMILAR"),
        ("lang LIKE other", "other"),
        ("lang LIKE 5", "5"),
        ("'x' LIKE lang", "lang"),
        ("lang LIKE ANY (tags)", "ANY"),
        ("lang LIKE 'x\\'", "escape"),
        ("lang LIKE 'x' ESCAPE 'ab'", "ESCAPE"),
        ("lang = E'x'", "'x'"),
        ("lang = U&'x'", "'x'"),
        ("lang = $$x$$", "'x'"),
        ("lang COLLATE \"C\" = 'x'", "COLLATE"),
        ("year IS DISTINCT FROM 1", "DISTINCT"),
        ("year = 1 = TRUE", "year = 1 where a column is wanted"),
        ("archived IS NULL IS NULL", "archived IS NULL"),
        ("author.* = 1", "*"),
        ("CASE WHEN a THEN b END", "CASE"),
        ("year = 1e100000", "digits"),
        (f"year = {'1' * 1100}", "digits"),
        ("if = 1", "if"),
    ],
)
def test_refused(where: str, part: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        translate_where(where)
    assert part in str(caught.value)
    assert len(str(caught.value)) < 300
    assert caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("where", ["lang = en", 'lang = "en"', "lang IN (en)"])
def test_text_without_its_quotes(where: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        translate_where(where)
    assert "single quotes: 'en'" in (caught.value.hint or "")


@pytest.mark.parametrize("character", ["\x00", "\ud800"])
def test_characters_that_nothing_can_hold(character: str) -> None:
    with pytest.raises(ConfigurationError, match="character"):
        translate_where(f"lang = '{character}'")


@pytest.mark.parametrize(
    "where",
    [
        "(" * 3000 + "a = 1" + ")" * 3000,
        "NOT " * 5000 + "a",
        "a = " + "- " * 5000 + "1",
        "CASE " * 3000,
        "[" * 3000,
        "a" + ".a" * 3000 + " = 1",
        "a IN (" + ", ".join(["1"] * 3000) + ")",
        " OR ".join(["a = 1"] * 1500),
        f"a = '{'x' * 100_001}'",
        f"a LIKE '{'%x' * 1000}'",
    ],
)
def test_too_much(where: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        translate_where(where)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "where",
    [
        " OR ".join(f"a = {n}" for n in range(1000)),
        " AND ".join(f"a <> {n}" for n in range(1000, 2000)),
        "a IN (" + ", ".join(str(n) for n in range(1999)) + ")",
        "a NOT IN (" + ", ".join(str(n) for n in range(1000, 2999)) + ")",
        "(" * 30 + "a = 7" + ")" * 30,
        "NOT NOT " * 30 + "a = 7",
        f"a = 7 AND NOT b LIKE '{'%x' * 500}'",
        f"a = 7 AND NOT b ILIKE '{'_' * 1000}'",
    ],
)
def test_much_is_still_answered(database: Connection, where: str) -> None:
    assert matching(database, where, {"a": 7, "b": "x" * 499}, {}) == [{"a": 7, "b": "x" * 499}]


# --- Together with a filter in jsonpath ----------------------------------------------------------


@pytest.mark.parametrize(
    "filter",
    [
        "$.a == 1",
        "lax $.a == 1",
        " LAX $.a == 1",
        "$.a == 1 || $.a == 7",
        '($.a == 1) || $.a == ")" || $.a == "\\"("',
        "$.a == 1 /* ) */",
    ],
)
def test_both_must_hold(database: Connection, filter: str) -> None:
    both = join_filters(filter, "b = 2 OR b = 3")
    rows = [{"a": 1, "b": 2}, {"a": 1}, {"b": 3}, {"a": 7, "b": 9}]
    found = [
        row
        for row in rows
        if value(database, "SELECT %s::jsonb @@ %s::jsonpath", json.dumps(row), both)
    ]
    assert found == [{"a": 1, "b": 2}]


@pytest.mark.parametrize(
    "filter",
    [
        "$.a == 1) || (1 == 1",
        "$.a == 1 /*",
        '$.a == "x',
        "$.a == 1 || (",
        "strict $.a == 1",
        "$.a\\",
    ],
)
def test_filters_that_cannot_be_enclosed(filter: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        join_filters(filter, "b = 2")
    assert caught.value.hint


def test_one_alone() -> None:
    assert join_filters(None, None) is None
    assert join_filters("strict $.a == 1", None) == "strict $.a == 1"
    assert join_filters(None, "a = 1") == '$."a" == 1'


# --- In the database -----------------------------------------------------------------------------


@pytest.fixture
def languages(postgresql: Connection) -> Connection:
    """2000 documents, 20 of them Chinese."""
    merge(
        postgresql,
        [
            passage(
                f"d{no}",
                f"Text {no}.",
                lang="zh" if no % 100 == 0 else "en",
                year=2000 + no % 30,
                tags=["few"] if no % 100 == 0 else ["many"],
                author={"name": "鲁迅" if no % 100 == 0 else "others"},
            )
            for no in range(2000)
        ],
    )
    postgresql.commit()
    postgresql.execute("ANALYZE sag.document")
    return postgresql


@pytest.mark.parametrize(
    "where",
    [
        "lang = 'zh'",
        "lang IN ('zh', 'ja')",
        "lang = 'zh' AND year >= 2000",
        "lang = 'zh' AND NOT year = 1999 AND tags IS NOT NULL",
        "NOT (lang <> 'zh' OR year < 2000)",
        "author.name = '鲁迅'",
        "'few' = ANY(tags)",
        "lang LIKE 'zh'",
    ],
)
def test_equality_is_served_by_the_index(languages: Connection, where: str) -> None:
    languages.execute("SET enable_seqscan = off")
    plan = value(
        languages,
        "EXPLAIN (ANALYZE, FORMAT JSON) SELECT FROM sag.document WHERE metadata @@ %s::jsonpath",
        translate_where(where),
    )
    scan = plan[0]["Plan"]["Plans"][0]
    assert scan["Index Name"] == "document_metadata"
    # Not all of the index, which is what serves a condition that it knows nothing of.
    assert scan["Actual Rows"] == 20


@pytest.fixture
def runner(database_url: str, postgresql: psycopg.Connection[Any]) -> CliRunner:
    merge(
        postgresql,
        [
            passage("old", "The mill at Elm bought looms.", "Elm", year=1999, lang="en"),
            passage("new", "The mill at Elm sold looms.", "Elm", year=2021, lang="en"),
            passage("zh", "Elm 的工厂出售织布机。", "Elm", year=2022, 语言="中文"),
        ],
    )
    postgresql.commit()
    return CliRunner(env={"DATABASE_URL": database_url, "SAG_PG_EMBEDDING": "none"})


@pytest.mark.parametrize("command", ["retrieve", "search", "trace"])
def test_commands(runner: CliRunner, command: str) -> None:
    def found(*arguments: str) -> set[str]:
        result = runner.invoke(cli.main, [command, "What is at Elm?", "--json", *arguments])
        assert result.exit_code == 0, result.output
        return {row["source"] for row in json.loads(result.stdout)} - {None}

    assert found() == {"old", "new", "zh"}
    assert found("--where", "year >= 2020 AND lang IN ('en', 'zh')") == {"new"}
    assert found("--where", "语言 = '中文'") == {"zh"}
    assert found("--where", "year > 2000", "--filter", '$.lang == "en"') == {"new"}


def test_a_command_says_what_is_wrong(runner: CliRunner) -> None:
    for command in ("retrieve", "search", "trace"):
        result = runner.invoke(cli.main, [command, "Elm", "--where", "upper(lang) = 'EN'"])
        assert (result.exit_code, result.stdout) == (2, "")
        assert "UPPER(lang)" in result.stderr
        assert "Allowed are" in result.stderr


def test_client(runner: CliRunner, database_url: str) -> None:
    with Client(migrate.connect_migrated(config.resolve(database_url))) as client:
        question = "What is at Elm?"
        assert [row.source for row in client.retrieve(question, where="year < 2000")] == ["old"]
        assert [
            row.source
            for row in client.retrieve(question, where="lang = 'en'", filter="$.year > 2000")
        ] == ["new"]
        traced = client.trace(question, where="语言 = '中文'")
        assert {row.source for row in traced if row.source} == {"zh"}
        hits = client.search(question, method="lexical", where="year > 2021")
        assert [hit.source for hit in hits] == ["zh"]
        with pytest.raises(ConfigurationError):
            client.retrieve(question, where="year = now()")
