from pathlib import Path
from typing import Any

import pytest
from loading import fail_one, load_one, text_of, write

from sag_pg.ingest.chunking import chunk


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def metadata_of(yaml: str) -> dict[str, Any]:
    write("a.md", f"---\n{yaml}\n---\ntext")
    document = load_one("a.md")
    assert text_of(document) == "text", "it was not taken as front matter"
    return document.metadata


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("last", ["---", "...", "--- \t"])
def test_the_title_is_the_title_and_the_rest_is_metadata(end: str, mark: str, last: str) -> None:
    lines = ["---", "title: The  'Title'", "year: 2020", last, "", "# Heading", "Text é"]
    write("a.md", mark + end.join(lines))
    document = load_one("a.md")
    assert document.title == "The 'Title'"
    assert document.metadata == {"year": 2020}
    assert text_of(document) == end.join(["", "# Heading", "Text é"])
    assert document.size == Path("a.md").stat().st_size


def test_without_a_title_the_heading_is_the_title() -> None:
    write("a.md", "---\nyear: 2020\n---\n# Heading\ntext")
    assert load_one("a.md").title == "Heading"
    write("a.md", "---\ntitle:\n---\n# Heading\ntext")
    assert load_one("a.md").title == "Heading"


def test_a_number_may_be_the_title_and_a_list_may_not() -> None:
    write("a.md", "---\ntitle: 1984\n---\ntext")
    assert load_one("a.md").title == "1984"
    write("a.md", "---\ntitle: [a, b]\n---\ntext")
    document = load_one("a.md")
    assert (document.title, document.title_stated) == ("a", False)
    assert document.metadata == {"title": ["a", "b"]}


def test_offsets_count_what_is_read() -> None:
    write("a.md", "---\ntitle: T\n---\n# One\nfirst\n# Two\nsecond\n")
    text = text_of(load_one("a.md"))
    for part in chunk([text], markdown=True):
        assert text[part.start_offset : part.end_offset] == part.content
    assert text.startswith("# One")


def test_toml() -> None:
    write("a.md", '+++\ntitle = "T"\nday = 2020-01-02\nat = 10:00:00\n[x]\ny = [1, 2.5]\n+++\ntext')
    document = load_one("a.md")
    assert document.title == "T"
    assert document.metadata == {"day": "2020-01-02", "at": "10:00:00", "x": {"y": [1, 2.5]}}
    assert text_of(document) == "text"


@pytest.mark.parametrize(
    ("yaml", "value"),
    [
        ("2020", 2020),
        ("-1.5", -1.5),
        ("1e3", 1000.0),
        ("true", True),
        ("null", None),
        ("", None),
        ("[a, 1]", ["a", 1]),
        ("{b: {c: 1}}", {"b": {"c": 1}}),
        ("2020-01-02", "2020-01-02"),
        ("2020-01-02 03:04:05", "2020-01-02T03:04:05+00:00"),
        ("2020-01-02T03:04:05+02:00", "2020-01-02T03:04:05+02:00"),
        ("2020-13-45", "2020-13-45"),
        # What version 1.1 of YAML makes into something else.
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("01234", "01234"),
        ("1_000", "1_000"),
        (".inf", ".inf"),
        ("1e999", "inf"),
        ("!!binary aGk=", "aGk="),
        ("!!set {b, a}", ["a", "b"]),
        ("{2: a, true: b, null: c, 2020-01-02: d}",
         {"2": "a", "true": "b", "null": "c", "2020-01-02": "d"}),
        ('"\\0 \\ud800"', "� �"),
    ],
)  # fmt: skip
def test_values_are_those_of_json(yaml: str, value: object) -> None:
    found = metadata_of(f"key: {yaml}")
    assert found == {"key": value}
    assert type(found["key"]) is type(value)


def test_it_may_be_empty() -> None:
    assert metadata_of("# a comment") == {}
    write("a.md", "---\n---\ntext")
    assert text_of(load_one("a.md")) == "text"


@pytest.mark.parametrize(
    "text",
    [
        "---\n\nA rule, and text.\n\n---\nMore",
        "---\nA rule and a paragraph\n---\nMore",
        "--- \n- a\n- b\n---\ntext",
        "----\ntitle: T\n----\ntext",
        "\n---\ntitle: T\n---\ntext",
        " ---\ntitle: T\n---\ntext",
        "---\ntitle: T\n",
        "---\ntitle: T\n ---\ntext",
        "---\ntitle: a: b\n---\ntext",
        "---\ntitle: {{ page }}\n---\ntext",
        "---\nkey: !!python/object/apply:os.system [true]\n---\ntext",
        "---\nkey: !unknown x\n---\ntext",
        "---\na: &a [x]\nb: *a\n---\ntext",
        "---\na: &a {b: *a}\n---\ntext",
        "---\nx: 1\n" + "k: [" * 20_000 + "\n---\ntext",
        "---\nx: " + "[" * 20_000 + "]" * 20_000 + "\n---\ntext",
        "---\nx: " + "9" * 10_000 + "\n---\ntext",
        "---\nx: " + "a" * 70_000 + "\n---\ntext",
        "---\n? [a, b]\n: c\n? {d: e}\n: f\n---\ntext",
        "+++\ntitle = \n+++\ntext",
        "+++\nx = " + "[" * 20_000 + "]" * 20_000 + "\n+++\ntext",
        "+++\nx = " + "9" * 10_000 + "\n+++\ntext",
        # Values that the reader of YAML fails for in ways of its own.
        "---\nkey: !!timestamp yesterday\n---\ntext",
        "---\nkey: !!bool perhaps\n---\ntext",
        "---\nkey: !!int ''\n---\ntext",
    ],
)
def test_what_is_none_stays_in_the_text(text: str) -> None:
    write("a.md", text)
    document = load_one("a.md")
    assert text_of(document) == text
    assert document.metadata == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "---\nyear: 2020\ntitle: a: b\n---\ntext",
            "mapping values are not allowed here in line 3",
        ),
        ("---\na: &a [x]\nb: *a\n---\ntext", "aliases are not supported"),
        ("---\nx: " + "[" * 20_000 + "]" * 20_000 + "\n---\ntext", "it is nested too deeply"),
        ("---\nkey: !!bool perhaps\n---\ntext", "a value is not of its type (KeyError: 'perhaps')"),
        ("---\ntitle: T\ntext", "no line ends it within 64 KiB"),
        ("---\nx: " + "a" * 70_000 + "\n---\ntext", "no line ends it within 64 KiB"),
        ("+++\na = 1\ntitle = \n+++\ntext", "Invalid value (at line 3, column 9)"),
        ("+++\ntitle = 'T'\ntext", "no line ends it within 64 KiB"),
    ],
)
def test_what_is_broken_is_said(text: str, problem: str) -> None:
    write("a.md", text)
    assert load_one("a.md").warning == (
        f"a.md: its front matter is broken and was left in the text: {problem}"
    )


@pytest.mark.parametrize(
    "text",
    [
        "---\ntitle: T\n---\ntext",
        "---\n\nA rule, and text: here.\n\n---\nMore",
        "---\nA rule and a paragraph\n---\nMore",
        "---\nA rule: and a paragraph",
        "---\n- a\n- b\n---\ntext",
        "text",
    ],
)
def test_nothing_is_said_of_what_is_whole_or_none(text: str) -> None:
    write("a.md", text)
    assert load_one("a.md").warning == ""


def test_a_mapping_that_multiplies_hurts_nobody() -> None:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    write("a.md", "---\n" + "\n".join(lines) + "\n---\ntext")
    assert load_one("a.md").metadata == {}


def test_bytes_that_are_no_utf8_are_found_where_they_are() -> None:
    write("a.md", b"---\ntitle: \xff\n---\ntext")
    assert str(fail_one("a.md").error).endswith("at byte 11")
    write("a.md", b"---\ntitle: T\n---\n\xff")
    assert str(fail_one("a.md").error).endswith("at byte 17")


def test_nothing_below_it_is_a_failure() -> None:
    write("a.md", "---\ntitle: T\n---\n \n")
    assert str(fail_one("a.md").error) == "a.md: there is nothing below the front matter"


def test_text_files_have_none() -> None:
    write("a.txt", "---\ntitle: T\n---\ntext")
    assert text_of(load_one("a.txt")) == "---\ntitle: T\n---\ntext"
