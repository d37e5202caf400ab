import json
import os
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loading import fail_one, load, load_one, text_of, write

from sag_pg.errors import LoadError
from sag_pg.ingest.chunking import chunk
from sag_pg.ingest.document import LoadFailure, SourceDocument, with_metadata
from sag_pg.ingest.loaders import (
    SUPPORTED_SUFFIXES,
    lines,
    list_sources,
    load_paths,
    measure_paths,
)
from sag_pg.text import clean, clean_json


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_lines(path: str, *records: Any) -> None:
    """Write a .jsonl file; strings and bytes are taken as they are."""
    lines = [
        record
        if isinstance(record, bytes)
        else (record if isinstance(record, str) else json.dumps(record)).encode()
        for record in records
    ]
    write(path, b"\n".join(lines) + b"\n")


class TestClean:
    def test_each_bad_character_becomes_one_replacement(self) -> None:
        dirty = "a\x00b\ud800c\udfff\ud83d\ude00\x00é\U0001f600\r\n\ufeff"
        assert clean(dirty) == "a�b�c����é\U0001f600\r\n\ufeff"
        assert len(clean(dirty)) == len(dirty)
        assert clean("only ascii\x00") == "only ascii�"

    def test_pieces_may_be_cleaned_by_themselves(self) -> None:
        dirty = "\ud83d\ude00\x00x" * 3
        assert "".join(map(clean, dirty)) == clean(dirty)

    def test_json_is_cleaned_at_every_depth(self) -> None:
        dirty = {"k\x00": ["\ud800", {"x": "\x00"}, 1, 1.5, True, None]}
        assert clean_json(dirty) == {"k�": ["�", {"x": "�"}, 1, 1.5, True, None]}


class TestText:
    def test_a_file_is_a_document(self) -> None:
        write("notes/first.txt", "# No heading\r\n\r\nText\rof é收购\U0001f600.\n")
        document = load_one("notes/first.txt")
        assert document.source == "notes/first.txt"
        assert document.title == "first"
        assert document.metadata == {}
        assert document.size == Path("notes/first.txt").stat().st_size
        assert not document.markdown
        assert text_of(document) == "# No heading\r\n\r\nText\rof é收购\U0001f600.\n"

    def test_markdown_takes_its_first_heading_as_title(self) -> None:
        write("a.md", "## Second\n\n```\n# comment\n```\n# The Title #\n\n# Other\n")
        document = load_one("a.md")
        assert document.title == "The Title"
        assert document.markdown

    def test_markdown_without_a_heading_has_its_name_as_title(self) -> None:
        write("read.me.md", "## Second\n")
        assert load_one("read.me.md").title == "read.me"

    def test_the_extension_may_be_in_capitals(self) -> None:
        write("A.MD", "# T\n")
        assert load_one("A.MD").markdown

    def test_a_byte_order_mark_is_dropped(self) -> None:
        write("a.md", b"\xef\xbb\xbf# Title\n")
        document = load_one("a.md")
        assert document.title == "Title"
        assert text_of(document) == "# Title\n"

    def test_nuls_and_surrogates_are_replaced_one_for_one(self) -> None:
        write("a.md", b"# T\x00\xed\xa0\x80\n\xed\xb0\x80" + b"x" * 300)
        document = load_one("a.md")
        assert document.title == "T��"
        assert text_of(document) == "# T��\n�" + "x" * 300

    def test_one_nul_does_not_make_a_short_text_binary(self) -> None:
        write("a.txt", b"a\x00b")
        assert text_of(load_one("a.txt")) == "a�b"

    @pytest.mark.parametrize("seed", range(5))
    def test_characters_across_the_pieces_are_kept(self, seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311
        text = "".join(
            rng.choices("aé收\U0001f600\n\ud800\x00", [9, 2, 2, 2, 1, 1, 0.1], k=150_000)
        )
        write("a.txt", b"b" * seed + text.encode("utf-8", "surrogatepass"))
        document = load_one("a.txt")
        assert text_of(document) == "b" * seed + clean(text)
        pieces = list(document.read())
        assert len(pieces) > 3
        assert max(map(len, pieces)) <= 65_540

    def test_metacharacters_in_names_are_kept(self) -> None:
        name = 'it\'s $$ %s \\ "q" \U0001f600 \u202e e\u0301.txt'
        write(name, "text")
        document = load_one(name)
        assert document.source == name
        assert document.title == name.removesuffix(".txt")

    def test_a_name_that_is_not_utf8_is_cleaned(self) -> None:
        try:
            Path(os.fsdecode(b"caf\xe9.txt")).write_text("text")
        except OSError:
            pytest.skip("the file system takes UTF-8 names only")
        for document in (load_one(os.fsdecode(b"caf\xe9.txt")), load_one(".")):
            assert (document.source, document.title) == ("caf%E9.txt", "caf�")
            assert text_of(document) == "text"

    @pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b" \r\n\t", b"\n" * 200_000])
    @pytest.mark.parametrize("name", ["a.txt", "a.md", "a.jsonl"])
    def test_a_file_without_text_is_empty(self, name: str, content: bytes) -> None:
        write(name, content)
        failure = fail_one(name)
        assert failure.source == name
        assert str(failure.error) == f"{name}: the file is empty"

    @pytest.mark.parametrize(
        ("content", "offset"),
        [
            (b"abc\xffdef", 3),
            (b"\xef\xbb\xbfabc\xff", 6),
            (b"caf\xe9 au lait", 3),
            (b"\xff\xfea\x00b\x00", 0),
            ("UTF-16 without a mark".encode("utf-16-be"), 0),
            (b"\x89PNG\r\n\x1a\n" + bytes(100), 6),
            (b"BM" + bytes(500), 2),
        ],
    )
    @pytest.mark.parametrize("name", ["a.txt", "a.md"])
    def test_binary_is_refused_with_its_offset(
        self, name: str, content: bytes, offset: int
    ) -> None:
        write(name, content)
        error = fail_one(name).error
        assert str(error).startswith(f"{name}: not UTF-8 text: ")
        assert str(error).endswith(f" at byte {offset}")

    @pytest.mark.parametrize("before", [65_535, 65_536, 131_070, 131_071, 200_000])
    def test_a_bad_byte_further_down_is_found_while_reading(self, before: int) -> None:
        write("a.txt", b"\xef\xbb\xbf" + b"x" * before + b"\xe6\x94\xff" + b"y" * 100_000)
        document = load_one("a.txt")
        with pytest.raises(LoadError, match=f"a.txt: not UTF-8 text: .* at byte {before + 3}$"):
            for _ in document.read():
                pass

    def test_a_file_that_vanished_is_a_load_error(self) -> None:
        write("a.txt", "text")
        document = load_one("a.txt")
        Path("a.txt").unlink()
        with pytest.raises(LoadError, match=r"a\.txt: cannot be read: No such file"):
            next(document.read())

    def test_a_text_that_breaks_off_in_a_character_is_found_while_reading(self) -> None:
        write("a.txt", b"cut off \xf0\x9f\x98")
        with pytest.raises(LoadError, match=r"unexpected end of data at byte 8$"):
            list(load_one("a.txt").read())

    # Chunking allocates so often that tracing it through 200 MB would take half a minute.
    @pytest.mark.parametrize(("size", "chunked"), [(200_000_000, False), (10_000_000, True)])
    def test_a_large_file_takes_little_memory(self, size: int, chunked: bool) -> None:
        line = "这是一个句子。 A sentence of some forty characters or so.\n"
        lines = size // len(line.encode()) + 1
        with Path("large.txt").open("wb") as file:
            for _ in range(0, lines, 10_000):
                file.write(line.encode() * 10_000)
        tracemalloc.start()
        document = load_one("large.txt")
        end = 0
        if chunked:
            for part in chunk(document.read(), markdown=False):
                end = part.end_offset + 1
        else:
            for piece in document.read():
                end += len(piece)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert document.size is not None
        assert document.size >= size
        assert end * len(line.encode()) == document.size * len(line)
        assert peak < 2_000_000


class TestPaths:
    def test_a_directory_is_read_in_sorted_order(self) -> None:
        for name in ("b.txt", "b/z.md", "b/a/c.TXT", "a.md", "c.jsonl", "B.txt", "b0.txt"):
            write(f"docs/{name}", '{"id": "line", "text": "x"}')
        sources = [document.source for document in load("docs")]
        files = ["B.txt", "a.md", "b.txt", "b/a/c.TXT", "b/z.md", "b0.txt"]
        assert sources == [*(f"docs/{name}" for name in files), "line"]

    def test_hidden_and_other_files_are_passed_over(self) -> None:
        for name in (
            ".hidden.txt",
            ".git/a.txt",
            "a.png",
            "~$a.docx",
            "README",
            "x/.y/z.txt",
            "ok.txt",
            ".md",
        ):
            write(name, "text")
        assert [document.source for document in load(".")] == ["ok.txt"]

    def test_hidden_files_are_read_when_named(self) -> None:
        write(".hidden/.a.txt", "text")
        assert load_one(".hidden/.a.txt").source == ".hidden/.a.txt"
        write(".hidden/b.txt", "text")
        assert load_one(".hidden").source == ".hidden/b.txt"

    @pytest.mark.parametrize("given", ["docs", "docs/", "./docs", "docs//"])
    def test_a_path_has_one_spelling(self, given: str) -> None:
        write("docs/a.txt", "text")
        assert load_one(given).source == "docs/a.txt"

    def test_absolute_and_parent_paths_stay_as_given(self, tmp_path: Path) -> None:
        write("docs/a.txt", "text")
        assert load_one(str(tmp_path / "docs")).source == f"{tmp_path.as_posix()}/docs/a.txt"
        assert load_one("docs/../docs/a.txt").source == "docs/../docs/a.txt"

    def test_links_to_files_are_followed_and_loops_end(self) -> None:
        write("real/a.txt", "text")
        Path("docs/sub").mkdir(parents=True)
        Path("docs/link.txt").symlink_to("../real/a.txt")
        Path("docs/sub/up").symlink_to("..")
        Path("docs/self.txt").symlink_to("self.txt")
        link, loop = load("docs")
        assert isinstance(link, SourceDocument)
        assert (link.source, text_of(link)) == ("docs/link.txt", "text")
        assert isinstance(loop, LoadFailure)
        assert loop.source == "docs/self.txt"

    def test_links_to_directories_are_passed_over_whatever_their_name(self) -> None:
        write("docs/a.txt", "text")
        for number in range(3):
            Path(f"docs/{number}.md").symlink_to(".")
        assert load_one("docs").source == "docs/a.txt"
        # Every path over these links would be one more: without an end, for a computer.
        assert measure_paths(["docs"]) == 4

    def test_a_link_to_a_directory_is_followed_when_named(self) -> None:
        write("real/a.txt", "text")
        Path("link").symlink_to("real")
        assert load_one("link").source == "link/a.txt"

    @pytest.mark.parametrize("name", ["report.doc", "report"])
    def test_a_named_file_of_another_type_is_refused(self, name: str) -> None:
        write(name, "text")
        failure = fail_one(name)
        assert failure.source == name
        assert str(failure.error).startswith(f"{name}: file type ")
        assert ", ".join(SUPPORTED_SUFFIXES) in str(failure.error)

    @pytest.mark.parametrize(
        "path", ["", "none.txt", "none", "none.txt/a.txt", "a\x00.txt", "x" * 300 + ".txt"]
    )
    def test_a_path_that_does_not_exist(self, path: str) -> None:
        failure = fail_one(path)
        assert "\x00" not in failure.source + str(failure.error)

    def test_what_is_no_file_is_not_opened(self) -> None:
        os.mkfifo("pipe.txt")
        assert "not a regular file" in str(fail_one("pipe.txt").error)
        assert "not a regular file" in str(fail_one(".").error)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_what_may_not_be_read_is_a_failure(self) -> None:
        write("a.txt", "text")
        write("docs/a.txt", "text")
        Path("a.txt").chmod(0)
        Path("docs").chmod(0)
        try:
            assert "Permission denied" in str(fail_one("a.txt").error)
            assert "Permission denied" in str(fail_one("docs").error)
        finally:
            Path("docs").chmod(0o700)

    def test_a_failure_does_not_stop_the_others(self) -> None:
        write("a.txt", "text")
        write("c.txt", b"\xff")
        write("d.txt", "text")
        kinds = [type(found).__name__ for found in load("a.txt", "b.txt", "c.txt", "d.txt")]
        assert kinds == ["SourceDocument", "LoadFailure", "LoadFailure", "SourceDocument"]

    def test_documents_come_one_at_a_time(self) -> None:
        write("docs/a.txt", "text")
        write("docs/b.txt", "text")
        found = load_paths(["docs"])
        next(found)
        Path("docs/b.txt").unlink()
        assert isinstance(next(found), LoadFailure)


class TestLines:
    def test_each_line_is_a_document(self) -> None:
        write_lines(
            "notes.jsonl",
            {"id": "a", "title": "T", "text": " x\r\ny ", "metadata": {"k": [1]}, "other": 1},
            {"id": 7, "source": "s", "text": "x"},
            {"id": 7, "text": "x", "title": None, "metadata": None, "source": None},
            {"id": 2.5, "text": "x"},
        )
        found = [item for item in load("notes.jsonl") if isinstance(item, SourceDocument)]
        assert [document.source for document in found] == ["a", "s", "7", "2.5"]
        assert [document.title for document in found] == ["T", "", "", ""]
        assert [document.metadata for document in found] == [{"k": [1]}, {}, {}, {}]
        assert text_of(found[0]) == " x\r\ny "
        assert not found[0].markdown
        assert sum(document.size or 0 for document in found) == Path("notes.jsonl").stat().st_size

    def test_a_bad_line_is_named_and_the_others_are_kept(self) -> None:
        good = [{"id": number, "text": "x"} for number in range(4)]
        write_lines("dir/notes.jsonl", *good[:2], '{"id": 9, "text": "x",', *good[2:])
        first, second, failure, third, fourth = load("dir/notes.jsonl")
        assert isinstance(failure, LoadFailure)
        assert failure.source == "dir/notes.jsonl:3"
        assert str(failure.error).startswith("dir/notes.jsonl:3: invalid JSON: ")
        assert failure.error.hint
        assert [document.source for document in (first, second, third, fourth)] == list("0123")

    def test_blank_lines_count_but_are_no_documents(self) -> None:
        write("notes.jsonl", b'\xef\xbb\xbf\r\n{"id": 1, "text": "x"}\r\n \n[]\n\n')
        document, failure = load("notes.jsonl")
        assert document.source == "1"
        assert failure.source == "notes.jsonl:4"

    def test_the_last_line_needs_no_end(self) -> None:
        write("notes.jsonl", b'\xef\xbb\xbf{"id": 1, "text": "x"}\n{"id": 2, "text": "x"}')
        assert [document.source for document in load("notes.jsonl")] == ["1", "2"]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("{", "invalid JSON: Expecting property name"),
            ("nonsense", "invalid JSON: Expecting value at column 1"),
            ('{"id": 1, "text": "x"} {}', "invalid JSON: Extra data at column 24"),
            ('{"id": NaN, "text": "x"}', "invalid JSON: NaN is not"),
            ('{"id": 1, "text": "x", "metadata": {"a": -Infinity}}', "-Infinity is not"),
            ('{"id": 1, "text": "x", "metadata": {"a": 1e999}}', "the number 1e999 is too large"),
            (f'{{"id": {"9" * 5000}, "text": "x"}}', "invalid JSON: Exceeds the limit"),
            ("[" * 100_000, "nested too deeply"),
            (f'{{"id": 1, "text": "x", "metadata": {{"a": {"[" * 900 + "]" * 900}}}}}', "deeply"),
            ('["id", 1]', "the line is not a JSON object"),
            ("null", "the line is not a JSON object"),
            ('{"text": "x"}', "the field id (or source) is missing"),
            ('{"id": true, "text": "x"}', "id (or source) must be a string or a number"),
            ('{"id": ["a"], "text": "x"}', "id (or source) must be a string or a number"),
            ('{"id": " ", "text": "x"}', "the id (or source) is empty"),
            ('{"id": 1}', "the field text is missing"),
            ('{"id": 1, "text": null}', "the field text is missing"),
            ('{"id": 1, "text": 5}', "text must be a string"),
            ('{"id": 1, "text": ""}', "the text is empty"),
            ('{"id": 1, "text": " \\n"}', "the text is empty"),
            ('{"id": 1, "text": "x", "title": 5}', "title must be a string"),
            ('{"id": 1, "text": "x", "metadata": []}', "metadata must be an object"),
            (b'{"id": 1, "text": "\xff"}', "not UTF-8 text: invalid start byte at byte 51"),
        ],
    )
    def test_what_a_line_may_not_be(self, line: str | bytes, message: str) -> None:
        first = {"id": "first", "text": "text"}
        write_lines("notes.jsonl", first, line, {"id": "last", "text": "text"})
        before, failure, after = load("notes.jsonl")
        assert (before.source, after.source) == ("first", "last")
        assert isinstance(failure, LoadFailure)
        assert str(failure.error).startswith("notes.jsonl:2: ")
        assert message in str(failure.error)
        assert len(str(failure.error)) < 200
        assert failure.error.hint

    def test_a_source_may_stand_in_one_line_only(self) -> None:
        write_lines(
            "notes.jsonl",
            {"id": "a", "text": ""},
            {"id": "a", "text": "kept"},
            {"id": "b", "text": "x"},
            {"source": "a", "text": "refused"},
        )
        empty, kept, _, refused = load("notes.jsonl")
        assert isinstance(empty, LoadFailure)
        assert isinstance(kept, SourceDocument)
        assert text_of(kept) == "kept"
        assert isinstance(refused, LoadFailure)
        assert str(refused.error) == "notes.jsonl:4: an earlier line has the source 'a' too"

    def test_nuls_and_surrogates_are_replaced_everywhere(self) -> None:
        write(
            "notes.jsonl",
            rb'{"id": "i\u0000\ud800", "title": "t\udc00", "text": "a\u0000b\ud83d\ude00\ud83d!",'
            rb' "metadata": {"k\u0000": [{"x": "\ud800"}]}}' + b"\n"
            b'{"id": "raw \x00\xed\xa0\x80", "text": "tab\there\x00"}\n',
        )
        escaped, raw = load("notes.jsonl")
        assert isinstance(escaped, SourceDocument)
        assert (escaped.source, escaped.title) == ("i��", "t�")
        assert escaped.metadata == {"k�": [{"x": "�"}]}
        assert text_of(escaped) == "a�b\U0001f600�!"
        assert isinstance(raw, SourceDocument)
        assert raw.source == "raw ��"
        assert text_of(raw) == "tab\there�"

    def test_a_file_in_utf16_is_refused_once(self) -> None:
        write("notes.jsonl", ('{"id": 1, "text": "x"}\n' * 50).encode("utf-16-le"))
        assert "not UTF-8 text: a NUL byte at byte 1" in str(fail_one("notes.jsonl").error)

    def test_a_line_beyond_the_limit_fails_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lines, "_LINE_LIMIT", 1000)
        given = [json.dumps({"id": n, "text": "x" * size}) for n, size in enumerate([9, 10**6, 9])]
        write_lines("notes.jsonl", *given, b'{"id": 3, "text": "\xff"}')
        first, failure, last, bad = load("notes.jsonl")
        assert (first.source, last.source) == ("0", "2")
        assert isinstance(failure, LoadFailure)
        assert str(failure.error).startswith("notes.jsonl:2: the line is longer than")
        assert isinstance(bad, LoadFailure)
        offset = Path("notes.jsonl").read_bytes().index(b"\xff")
        assert str(bad.error).endswith(f" at byte {offset}")

    def test_long_texts_come_in_pieces(self) -> None:
        write_lines("notes.jsonl", {"id": 1, "text": "é" * 200_000})
        pieces = list(load_one("notes.jsonl").read())
        assert max(map(len, pieces)) == 65_536
        assert "".join(pieces) == "é" * 200_000

    def test_memory_does_not_grow_with_the_file(self) -> None:
        line = json.dumps({"id": "same", "text": "x" * 10_000}).encode() + b"\n"
        write("notes.jsonl", line * 3000)
        tracemalloc.start()
        count = sum(1 for _ in load_paths(["notes.jsonl"]))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert count == 3000
        assert peak < 1_000_000


class TestStdin:
    def test_text(self) -> None:
        content = b"\xef\xbb\xbf# A\x00\r\n" + "é收".encode() * 100_000
        document = load_one("-", stdin=content)
        assert (document.source, document.title, document.markdown) == ("-", "", False)
        assert document.size == len(content)
        assert text_of(document) == "# A�\r\n" + "é收" * 100_000

    def test_lines(self) -> None:
        content = b'\xef\xbb\xbf\n  \n {"id": 1, "text": "x"}\n{"id": 2,\n{"id": 3, "text": "y"}'
        first, failure, last = load("-", stdin=content)
        assert isinstance(first, SourceDocument)
        assert isinstance(last, SourceDocument)
        assert (first.source, text_of(first)) == ("1", "x")
        assert (last.source, text_of(last)) == ("3", "y")
        assert str(getattr(failure, "error", "")).startswith("<stdin>:4: invalid JSON")

    @pytest.mark.parametrize("content", ['{\n "id": 1, "text": "x"}', "{curly} text", '["id"]\n'])
    def test_what_only_looks_like_lines_is_text(self, content: str) -> None:
        assert text_of(load_one("-", stdin=content.encode())) == content

    def test_documents_can_be_read_side_by_side_after_loading(self) -> None:
        text = "".join(map(str, range(50_000)))
        document = load_one("-", stdin=text.encode())

        def alternate() -> Iterator[tuple[str, str]]:
            yield from zip(document.read(), document.read(), strict=True)

        pairs = list(alternate())
        assert len(pairs) > 2
        assert "".join(one for one, _ in pairs) == "".join(other for _, other in pairs) == text

    @pytest.mark.parametrize("content", [b"", b" \n\n"])
    def test_empty(self, content: bytes) -> None:
        failure = fail_one("-", stdin=content)
        assert failure.source == "-"
        assert str(failure.error) == "<stdin>: the file is empty"

    def test_binary(self) -> None:
        assert str(fail_one("-", stdin=b"\x1f\x8b\x08").error).endswith(" at byte 1")

    def test_standard_input_may_be_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", None)
        assert str(fail_one("-").error) == "standard input: cannot be read: it is closed"

    def test_a_pipe_can_be_read(self) -> None:
        receiver, sender = os.pipe()
        os.write(sender, b"through a pipe")
        os.close(sender)
        with os.fdopen(receiver, "rb") as stdin:
            (document,) = load_paths(["-"], stdin=stdin)
        assert isinstance(document, SourceDocument)
        assert text_of(document) == "through a pipe"

    def test_among_other_paths(self) -> None:
        write("a.txt", "text")
        assert [item.source for item in load("a.txt", "-", "a.txt", stdin=b"x")] == [
            "a.txt",
            "-",
            "a.txt",
        ]


class TestMeasure:
    def test_all_that_would_be_loaded_counts(self) -> None:
        for number, suffix in enumerate(SUPPORTED_SUFFIXES):
            write(f"docs/sub/a{suffix.upper()}", "x" * 2**number)
        write("docs/a.png", "x" * 5)
        write("docs/.a.pdf", "x" * 5)
        expected = 2 ** len(SUPPORTED_SUFFIXES) - 1
        assert measure_paths(["docs", "-", "", "none", "docs/a.png"]) == expected
        assert measure_paths(["docs/.a.pdf"]) == 5


class TestTitleStated:
    @pytest.mark.parametrize(
        ("name", "content", "is_stated"),
        [
            ("a.txt", "# text", False),
            ("a.md", "text", False),
            ("a.md", "# Heading\ntext", True),
            ("a.md", "---\ntitle: T\n---\ntext", True),
            ("a.md", "---\nyear: 2020\n---\ntext", False),
            ("a.csv", "a,b\n1,2\n", False),
            ("a.jsonl", '{"id": 1, "text": "x"}', True),
        ],
    )
    def test_a_file_name_is_no_title_that_was_given(
        self, name: str, content: str, is_stated: bool
    ) -> None:
        write(name, content)
        assert load_one(name).title_stated is is_stated


class TestFailedFile:
    """What tells a sync which document it is that failed."""

    def test_a_document_that_failed_has_its_source(self) -> None:
        write("docs/a.txt", b"\xff")
        write("docs/b.pdf", "no pdf")
        write("docs/c.csv", b"a\x00" * 100)
        for failure in load("docs", "docs/none.docx"):
            assert isinstance(failure, LoadFailure)
            assert failure.file is None
        assert [item.source for item in load("docs")] == ["docs/a.txt", "docs/b.pdf", "docs/c.csv"]

    def test_of_lines_only_the_file_is_known(self) -> None:
        write_lines("docs/a.jsonl", {"id": 1, "text": "x"}, "{", {"id": 1, "text": "x"})
        write("docs/b.jsonl", "")
        Path("docs/c.jsonl").symlink_to("none")
        failures = [item for item in load("docs") if isinstance(item, LoadFailure)]
        assert [(failure.source, failure.file) for failure in failures] == [
            ("docs/a.jsonl:2", "docs/a.jsonl"),
            ("docs/a.jsonl:3", "docs/a.jsonl"),
            ("docs/b.jsonl", "docs/b.jsonl"),
            ("docs/c.jsonl", "docs/c.jsonl"),
        ]

    def test_of_a_directory_that_is_not_there_nothing_is_known(self) -> None:
        assert fail_one("none").file == "none"

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_of_a_directory_that_cannot_be_listed_nothing_is_known(self) -> None:
        write("docs/sub/a.txt", "text")
        Path("docs/sub").chmod(0)
        try:
            assert fail_one("docs").file == "docs/sub"
        finally:
            Path("docs/sub").chmod(0o700)


class TestListSources:
    def test_they_are_those_of_the_documents(self) -> None:
        write("docs/a.txt", "text")
        write("docs/sub/b.md", "# Title")
        write("docs/c.csv", "a,b\n1,2")
        write("docs/d.jsonl", '{"id": "one", "text": "1"}\n{"text": "no id"}\n{"id": "two"}\n{')
        write("docs/empty.jsonl", "")
        write("docs/broken.pdf", "no PDF")
        write("docs/.hidden.txt", "text")
        write("docs/other.bin", "bytes")
        os.mkfifo("docs/pipe.txt")
        os.mkfifo("docs/pipe.jsonl")
        listed: list[str] = []
        unclear: list[str | None] = []
        for found in list_sources("docs"):
            if isinstance(found, LoadFailure):
                unclear.append(found.file)
            else:
                listed.append(found)
        loaded = load("docs")
        failures = [found for found in loaded if isinstance(found, LoadFailure)]
        assert unclear == [found.file for found in failures if found.file is not None]
        assert len(unclear) >= 3
        known = [found for found in loaded if getattr(found, "file", None) is None]
        assert listed == [found.source for found in known]
        assert {"one", "docs/a.txt", "docs/broken.pdf", "docs/pipe.txt"} < set(listed)


class TestWithMetadata:
    def test_it_goes_over_what_a_document_says(self) -> None:
        write("a.md", "---\nyear: 2020\nlang: en\n---\ntext")
        write("b.txt", "text")
        found = list(
            with_metadata(load("a.md", "b.txt", "none"), {"year": 2024, "k\x00": ["\x00"]})
        )
        added = {"year": 2024, "k�": ["�"]}
        first, second, failure = found
        assert isinstance(first, SourceDocument)
        assert first.metadata == {"lang": "en", **added}
        assert text_of(first) == "text"
        assert isinstance(second, SourceDocument)
        assert second.metadata == added
        assert isinstance(failure, LoadFailure)

    def test_documents_come_one_at_a_time(self) -> None:
        write("a.txt", "text")
        found = with_metadata(load_paths(["a.txt", "b.txt"]), {"a": 1})
        next(found)
        write("b.txt", "text")
        assert isinstance(next(found), SourceDocument)
