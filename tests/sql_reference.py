"""Renders sql/README.md, the SQL reference, from the catalog of a migrated database.

Run as a program it rewrites the file: python tests/sql_reference.py
"""

import argparse
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psycopg

from sag_pg import embedded, migrate, scripts

Connection = psycopg.Connection[Any]

TARGET = Path(__file__).parents[1] / "sql" / "README.md"
COMMAND = "python tests/sql_reference.py"

INTRODUCTION = """\
<!-- Generated from the database by `python tests/sql_reference.py`; not to be edited. -->

# SQL reference

sag-pg is tables and functions in the schema `sag`, and a few entry points in `public` that any
client calls without a prefix. Everything on this page is also in the database: `\\df+ sag.*`,
`\\dt+ sag.*`, and `SELECT * FROM sag.parameter`.

## Loading

`sag-pg migrate` does all of this and keeps a ledger of it; repeat it after each upgrade. The same
by hand, for a database that stays without that ledger and so out of reach of `sag-pg migrate`:

```sql
CREATE EXTENSION IF NOT EXISTS vector;
CREATE EXTENSION IF NOT EXISTS pg_trgm;
```

```sh
for file in migrations/*.sql; do psql -v ON_ERROR_STOP=1 -1 -f "$file"; done
psql -v ON_ERROR_STOP=1 -1 -f sql/load.sql
```

`migrations/` is what holds data: each file runs once, by its number. `sql/` is what can be
replaced: run `sql/load.sql` again after each change. `-1` is needed, because every file works under
a search_path that it sets for its transaction. PostgreSQL 16 or newer, pgvector 0.8 or newer; the
two extensions may stand in any schema, and no superuser is needed where they are installed.

Before the first vectors come, the database is told which model makes them, which types the columns
and builds the HNSW indexes. Without any, everything works by words:

```sql
SELECT sag.set_embedding_space('bge-small-en-v1.5', 384);
```

## Roles

| role | may |
|---|---|
| `sag_reader` | retrieve: `USAGE` on the schema, `SELECT` on its tables |
| `sag_writer` | the same, and ingest, delete, make collections and set their parameters |
| owner of the tables | all else: migrate, set the embedding model and the database's parameters |

Both are group roles without login, made by the last file of `sql/` where that is allowed; grant
them with `GRANT sag_reader TO alice`. All functions run with the rights of their caller.

## Retrieving

```sql
SELECT rank, source, content, score FROM sag_retrieve('Who acquired Company B?');
```

Where a [model gateway](#the-model-gateway) is installed, it embeds the question. Without one this
searches words, and the column `mode` says so. An application that embeds the question itself passes
`embedding => $1`, made by the model of `sag.embedding_space`.

A filter is a jsonpath predicate on the metadata of documents, options are parameters for this call
only, entities are names that the question means in addition to those found in it:

```sql
SELECT rank, source, title, found_by, hop, via
FROM sag_retrieve(
    'Which project did the CTO of the company that acquired Company B join later?',
    collection => 'default',
    entities => ARRAY['Company B'],
    filter => '$.lang == "en" && $.year >= 1990',
    options => '{"hops": 2, "output_limit": 5}'
);
```

`sag_trace` takes the same arguments and returns what each stage found. Rank 0 of a stage is its
summary:

```sql
SELECT stage, name, elapsed_ms FROM sag_trace('Who acquired Company B?') WHERE rank = 0;

SELECT stage, rank, method, name, entity, hop, score
FROM sag_trace('Who acquired Company B?')
WHERE stage IN ('link_entities', 'rank_events') AND rank BETWEEN 1 AND 10;
```

## Setting parameters

A value is taken from the call's `options`, else from the collection, else from the database, else
it is the default. An unknown name or a value out of range is an error that names what is valid.

```sql
SELECT sag.set_parameter('output_limit', '20', 'default');  -- for a collection
SELECT sag.set_parameter('hops', '2');                      -- for the database
SELECT sag.set_parameter('hops', NULL);                     -- takes it back

SELECT * FROM jsonb_each(sag.resolve_parameters(sag.collection_key('default'), '{"hops": 3}'));
```

## The model gateway

A plain SQL client has no model, so the database asks one: `sag-pg serve` listens as a PostgreSQL
server, and the database calls it through `dblink`. No key of a model's provider comes into the
database. Its owner does, once:

```sh
sag-pg gateway install
sag-pg serve
```

A gateway on another machine is reached with TLS (`--sslmode verify-full`). Installed again, the
database keeps the password and all that is not given.

From then on `sag_retrieve('question')` searches vectors for every member of `sag_reader`, in a
read-only transaction and on a hot standby too, which looks for the gateway at the same address. Two
parameters say what models do; like all parameters they can be set for a call, for a collection and
for the database:

| parameter | value | |
|---|---|---|
| `understand` | `sql` | the question is read in SQL alone |
| | `embedding` | where no embedding is given, the gateway makes it; the default |
| | `model` | and a language model names the question's entities |
| `choose` | `rank` | the ranking stands; the default |
| | `model` | a language model chooses among the best `choose_candidate_limit` |

```sql
SELECT source, content, mode
FROM sag_retrieve('Who acquired Company B?', options => '{"choose": "model"}');

SELECT jsonb_pretty(sag.gateway_status());
```

`sag_embed` gives the vector alone. In a query it stands in brackets, so that the gateway is asked
once: without them that is so only where an index is searched, and else it is asked for each row.

```sql
SELECT title
FROM sag.event
ORDER BY embedding <=> (SELECT sag_embed('Who acquired Company B?'))
LIMIT 5;
```

The answers of all calls of a retrieval are waited for no longer than `gateway_timeout`. What fails
is done without a model: a warning says why, the trace says it in rank 0 of the stage, and `mode`
names it in brackets, as in `lexical (gateway failed)`. The option `strict` makes an error of it.
Cancelling the query ends the call. Each session keeps one connection to the gateway, called
`sag_gateway` and a number in `dblink_get_connections()`, and opens it again when it has died.

While a connection is being opened, `gateway_timeout` does not hold, for dblink knows no limit
there. A gateway that is down refuses at once; one that accepts the connection and then says
nothing, because it is frozen, holds a new session up, and a session that was cancelled while it
waited for it. Only `statement_timeout` ends that, with an error and no fallback, so set it for
those who retrieve: `ALTER ROLE alice SET statement_timeout = '30s'`.

The password is random, made in the database, and shown to the owner of the foreign server alone;
`sag-pg gateway rotate` changes it. A dump taken by the owner or a superuser has it in it.

A kept connection is its session's: `dblink_send_query` takes it under any role that the session has
later. So a `SECURITY DEFINER` function that retrieves for users who may not use the gateway leaves
them one, by which they can ask its models; `dblink_disconnect` at its end takes it away.

## Seeing where the time goes

Each stage of the pipeline is a function of its own, so PostgreSQL's own tools show it by name. Both
need superuser, or the corresponding right from the provider.

```sql
SET track_functions = 'pl';
SELECT count(*) FROM sag_retrieve('Who acquired Company B?');
SELECT pg_stat_force_next_flush();
SELECT funcname, calls, total_time, self_time
FROM pg_stat_user_functions
WHERE schemaname = 'sag'
ORDER BY self_time DESC;
```

The plans of the statements inside the functions, with real rows and times:

```sql
LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0;
SET auto_explain.log_nested_statements = on;
SET auto_explain.log_analyze = on;
SET client_min_messages = log;
SELECT count(*) FROM sag_retrieve('Who acquired Company B?');
SELECT pg_stat_force_next_flush();
```
"""

# Headings of the functions by the folder of sql/ that defines them, in the order of the page.
FOLDERS = {
    "pipeline": "Pipeline",
    "gateway": "Model gateway",
    "baseline": "Baseline",
    "ingest": "Ingest",
    "transfer": "Export and import",
    "reembed": "Change of the embedding model",
    "admin": "Administration",
    "text": "Text",
}

VOLATILITY = {"i": "IMMUTABLE", "s": "STABLE", "v": "VOLATILE"}
PARALLEL = {"s": "SAFE", "r": "RESTRICTED", "u": "UNSAFE"}

CREATED = re.compile(r"CREATE OR REPLACE (?:FUNCTION|PROCEDURE|AGGREGATE) (?:sag|public)\.(\w+)")


def render(connection: Connection) -> str:
    """Return the text of sql/README.md.

    Args:
        connection: To a freshly migrated database.
    """
    with connection.transaction(force_rollback=True):
        # So that what is printed is qualified where it is sag's, and plain where it is not,
        # whatever schema the extensions stand in.
        connection.execute(
            b"SELECT set_config('search_path', replace(sag.search_path(), 'sag, ', ''), true)"
        )
        functions = _functions(connection)
        parts = [
            INTRODUCTION,
            _function_section("Entry points", [f for f in functions if f["schema"] == "public"]),
            "## Parameters\n\n" + _parameters(connection),
        ]
        inner = [function for function in functions if function["schema"] == "sag"]
        for folder, heading in FOLDERS.items():
            parts.append(_function_section(heading, [f for f in inner if f["folder"] == folder]))
        parts.append(
            _function_section(
                "Functions that stored data depends on",
                [f for f in inner if f["folder"] == "migrations"],
            )
        )
        parts.append("## Tables\n\n" + "\n".join(_tables(connection)))
    contents = re.findall(r"^## (.+)$", "\n".join(parts), re.MULTILINE)
    links = "".join(f"- [{heading}](#{_anchor(heading)})\n" for heading in contents)
    head, _, rest = "\n".join(parts).partition("\n## ")
    return f"{head}\n{links}\n## {rest}"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")


def _rows(connection: Connection, query: str, *parameters: object) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        return cursor.execute(query.encode(), parameters).fetchall()


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n".replace("  ", " ") for line in lines)


def _prose(comment: str) -> str:
    return re.sub(r"([|<>*])", r"\\\1", comment)


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|')}`" if text else ""


# Functions.


def _defining_files() -> dict[str, tuple[int, str]]:
    """Place in load.sql and folder of each function that sql/ defines."""
    return {
        name: (place, script.name.partition("/")[0])
        for place, script in enumerate(scripts.load_program().sources)
        for name in CREATED.findall(script.text)
    }


def _functions(connection: Connection) -> list[dict[str, Any]]:
    """All functions, in the order in which sql/load.sql defines them, migrations' first."""
    files = _defining_files()
    found = _rows(
        connection,
        r"""
        SELECT
            p.pronamespace::regnamespace::text AS schema, p.proname AS name, p.prokind AS kind,
            p.provolatile AS volatility, p.proparallel AS parallel,
            obj_description(p.oid, 'pg_proc') AS comment,
            pg_get_function_identity_arguments(p.oid) AS identity,
            pg_get_function_result(p.oid) AS result,
            ARRAY(
                SELECT s.setting FROM unnest(p.proconfig) AS s (setting)
                WHERE s.setting NOT LIKE 'search\_path=%%' ORDER BY s.setting COLLATE "C"
            ) AS settings,
            a.arguments, a.columns
        FROM pg_proc AS p
        CROSS JOIN LATERAL (
            SELECT
                coalesce(jsonb_agg(jsonb_build_array(
                    p.proargnames[t.no], format_type(t.type, NULL),
                    pg_get_function_arg_default(p.oid, t.no::integer)
                ) ORDER BY t.no) FILTER (
                    WHERE coalesce(p.proargmodes[t.no], 'i') IN ('i', 'b', 'v')
                ), '[]') AS arguments,
                coalesce(jsonb_agg(jsonb_build_array(
                    p.proargnames[t.no], format_type(t.type, NULL)
                ) ORDER BY t.no) FILTER (WHERE p.proargmodes[t.no] IN ('o', 'b', 't')), '[]')
                AS columns
            FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[]))
                WITH ORDINALITY AS t (type, no)
        ) AS a
        WHERE p.pronamespace = 'sag'::regnamespace
            OR p.pronamespace = 'public'::regnamespace AND p.proname LIKE 'sag\_%%'
        """,
    )
    for function in found:
        place, folder = files.get(function["name"], (-1, "migrations"))
        if folder not in FOLDERS and folder != "migrations":
            raise LookupError(f"sql/{folder} has no heading in FOLDERS of {Path(__file__).name}")
        function |= {"place": place, "folder": folder}
    return sorted(found, key=lambda f: (f["place"], f["name"], f["identity"]))


def _function_section(heading: str, functions: Iterable[dict[str, Any]]) -> str:
    return f"## {heading}\n\n" + "\n".join(map(_function, functions))


def _function(function: dict[str, Any]) -> str:
    name = function["name"] if function["schema"] == "public" else f"sag.{function['name']}"
    arguments = [
        f"{argument} {type_}" + (f" DEFAULT {_plain(default, type_)}" if default else "")
        for argument, type_, default in function["arguments"]
    ]
    if function["columns"]:
        columns = [f"{column} {type_}" for column, type_ in function["columns"]]
        returned = _fold("RETURNS TABLE ", columns)
    else:
        returned = f"RETURNS {function['result']}"
    separator = "\n" if function["columns"] and arguments else " "
    traits = [
        *(["aggregate"] if function["kind"] == "a" else []),
        VOLATILITY[function["volatility"]],
        f"PARALLEL {PARALLEL[function['parallel']]}",
        *(f"SET {setting.replace('=', ' = ', 1)}" for setting in function["settings"]),
    ]
    return (
        f"### {name}()\n\n{_prose(function['comment'])}\n\n"
        f"```sql\n{_fold(name, arguments)}{separator}{returned}\n```\n\n{', '.join(traits)}\n"
    )


def _fold(head: str, items: Sequence[str]) -> str:
    """A parenthesised list, on one line where it fits."""
    line = f"{head}({', '.join(items)})"
    if len(line) <= 88:
        return line
    return f"{head}(\n" + ",\n".join(f"    {item}" for item in items) + "\n)"


def _plain(default: str, type_: str) -> str:
    """A default as one would write it: the catalog adds its type."""
    plain = default.removesuffix(f"::{type_}")
    return plain.upper() if plain in ("true", "false") else plain


# Parameters.


def _parameters(connection: Connection) -> str:
    rows = _rows(
        connection,
        """
        SELECT
            name, default_value #>> '{}' AS value, unit, meaning,
            CASE
                WHEN type = 'boolean' THEN 'true, false'
                WHEN choices IS NOT NULL THEN array_to_string(choices, ', ')
                ELSE format('%%s to %%s', minimum::numeric, maximum::numeric)
            END AS range
        FROM sag.parameter
        ORDER BY name COLLATE "C"
        """,
    )
    return _table(
        ("name", "default", "range", "unit", "meaning"),
        (
            (
                _code(row["name"]),
                _code(row["value"]),
                row["range"],
                row["unit"] or "",
                _prose(row["meaning"]),
            )
            for row in rows
        ),
    )


# Tables.


def _tables(connection: Connection) -> Iterable[str]:
    relations = _rows(
        connection,
        """
        SELECT c.oid, c.relname AS name, obj_description(c.oid, 'pg_class') AS comment
        FROM pg_class AS c
        WHERE c.relnamespace = 'sag'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
        ORDER BY c.relname COLLATE "C"
        """,
    )
    for relation in relations:
        columns = _rows(
            connection,
            """
            SELECT
                a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull,
                col_description(a.attrelid, a.attnum) AS comment, a.attgenerated, a.attidentity,
                pg_get_expr(d.adbin, d.adrelid) AS expression
            FROM pg_attribute AS a
            LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
            ORDER BY a.attnum
            """,
            relation["oid"],
        )
        yield (
            f"### sag.{relation['name']}\n\n{_prose(relation['comment'])}\n\n"
            + _table(
                ("column", "type", "NULL", "default", "meaning"),
                (
                    (
                        _code(column["name"]),
                        _code(column["type"]),
                        "" if column["attnotnull"] else "yes",
                        _default(column),
                        _prose(column["comment"]),
                    )
                    for column in columns
                ),
            )
            + "".join(f"\n{part}" for part in (_keys(connection, relation["oid"]),) if part)
        )


def _default(column: dict[str, Any]) -> str:
    if column["attidentity"]:
        return "identity"
    if column["attgenerated"]:
        return f"generated: {_code(column['expression'])}"
    return _code(_plain(column["expression"] or "", column["type"]))


def _keys(connection: Connection, relation: int) -> str:
    """Constraints, and the indexes that are none."""
    rows = _rows(
        connection,
        r"""
        SELECT
            array_position(ARRAY['p', 'u', 'f', 'c'], k.contype::text) AS kind,
            pg_get_constraintdef(k.oid, true) AS definition, NULL AS name, NULL AS comment
        FROM pg_constraint AS k
        WHERE k.conrelid = %s AND k.contype IN ('p', 'u', 'f', 'c')
        UNION ALL
        SELECT
            5,
            regexp_replace(
                pg_get_indexdef(i.indexrelid), '^CREATE (UNIQUE )?INDEX .* USING ', '\1'
            ),
            c.relname, obj_description(c.oid, 'pg_class')
        FROM pg_index AS i
        INNER JOIN pg_class AS c ON c.oid = i.indexrelid
        WHERE i.indrelid = %s
            AND NOT EXISTS (SELECT FROM pg_constraint AS k WHERE k.conindid = i.indexrelid
                AND k.conrelid = i.indrelid)
        """,
        relation,
        relation,
    )
    return "".join(
        f"- {_code(row['definition'])}\n"
        if row["name"] is None
        else f"- index {_code(row['name'])}, {_code(row['definition'])}: {_prose(row['comment'])}\n"
        for row in sorted(rows, key=lambda r: (r["kind"], r["name"] or "", r["definition"]))
    )


def main() -> None:
    """Rewrite sql/README.md."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "--database-url",
        metavar="URL",
        help="a freshly migrated database; without it an embedded server is started and stopped",
    )
    url = parser.parse_args().database_url
    with tempfile.TemporaryDirectory() as directory:
        data_dir = Path(directory) / "server"
        try:
            conninfo = url or embedded.get_uri(data_dir)
            with psycopg.connect(conninfo, autocommit=True) as connection:
                if url is None:
                    migrate.migrate(connection)
                migrate.check(connection)
                if connection.execute("SELECT FROM sag.embedding_space").fetchone():
                    parser.error(
                        "the database is in use: its columns and indexes are those of a model"
                    )
                text = render(connection)
        finally:
            if url is None:
                embedded.stop(data_dir)
    TARGET.write_text(text)


if __name__ == "__main__":
    main()
