"""Files that are converted: pages, PDF, Word, PowerPoint, Excel, mail."""

import datetime
import io
import json
import os
import signal
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import file_maker
import pytest
from loading import fail_one, load, load_one, text_of, write

from sag_pg.ingest.chunking import chunk
from sag_pg.ingest.conversion import child
from sag_pg.ingest.conversion.process import Converter
from sag_pg.ingest.document import LoadFailure, SourceDocument
from sag_pg.ingest.loaders import converted, load_paths

pytest.importorskip("markitdown")


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def headings(document: SourceDocument) -> list[tuple[str, ...]]:
    assert document.markdown
    return [part.heading_path for part in chunk([text_of(document)], markdown=True)]


def changed(data: bytes, part: str, change: Callable[[bytes], bytes]) -> bytes:
    """Change a part of a file of Word, PowerPoint or Excel."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    return file_maker.zip_file({**parts, part: change(parts[part])})


class TestHtml:
    def test_title_headings_and_text(self) -> None:
        write(
            "a.html",
            "<!doctype html><html><head><title> The &amp;\n page </title><style>p {}</style></head>"
            "<body><script>bad()</script><h1>One</h1><p>Text é <b>bold</b> snake_case 2 * 3</p>"
            '<h2>Two</h2><p>More <a href="https://example.org/long">words</a>'
            ' <img src="data:image/png;base64,AAAA" alt="A dog"> <img src="b(1).png"></p>'
            "<table><tr><th>k</th></tr><tr><td>v</td></tr></table></body></html>",
        )
        document = load_one("a.html")
        assert (document.source, document.title) == ("a.html", "The & page")
        assert document.title_stated
        assert document.size == Path("a.html").stat().st_size
        assert headings(document) == [("One",), ("One", "Two")]
        text = text_of(document)
        assert "Text é **bold** snake_case 2 * 3" in text
        assert "More words A dog\n" in text
        assert "| k |\n| --- |\n| v |" in text
        for noise in ("bad()", "p {}", "example.org", "base64", "png"):
            assert noise not in text

    def test_without_a_title_the_first_heading_names_it_else_the_file(self) -> None:
        write("a.htm", "<h2>Low</h2><h1>High</h1>text")
        assert load_one("a.htm").title == "High"
        write("a.htm", "<title></title>text")
        document = load_one("a.htm")
        assert (document.title, document.title_stated) == ("a", False)

    @pytest.mark.parametrize(
        ("encoding", "declared"),
        [
            ("utf-8", ""),
            ("utf-8-sig", ""),
            ("utf-16", ""),
            ("shift_jis", "shift_jis"),
            ("iso-2022-jp", "iso-2022-jp"),
        ],
    )
    def test_encodings(self, encoding: str, declared: str) -> None:
        meta = f'<meta charset="{declared}">' if declared else ""
        page = f"<html><head>{meta}<title>日本</title></head><body>日本語のテキスト</body></html>"
        write("a.html", page.encode(encoding))
        document = load_one("a.html")
        assert (document.title, text_of(document)) == ("日本", "日本語のテキスト\n")

    def test_deep_nesting_keeps_the_text(self) -> None:
        write("a.html", "<div>" * 5000 + "deep" + "</div>" * 5000)
        assert text_of(load_one("a.html")) == "deep\n"

    def test_bad_characters_are_replaced(self) -> None:
        write("a.html", "<title>T&#xd800;</title><p>a\x00b</p>")
        document = load_one("a.html")
        assert "\x00" not in text_of(document)
        assert document.title.encode()

    # What is compressed has all bytes, and few NULs.
    @pytest.mark.parametrize("rest", [bytes(500), bytes(range(1, 256)) * 20])
    def test_binary_is_refused(self, rest: bytes) -> None:
        write("a.html", b"\x89PNG\r\n\x1a\n" + rest)
        assert str(fail_one("a.html").error) == "a.html: it is no web page but binary data"


class TestDocx:
    PARAGRAPHS = (
        ("Title", "The Title"),
        ("Heading1", "One"),
        ("", "Text é 收购 of snake_case."),
        ("Heading2", "Two"),
        ("", "More text."),
    )

    def test_headings_and_the_title_among_the_properties(self) -> None:
        write("a.docx", file_maker.docx(self.PARAGRAPHS, "Stated  title"))
        document = load_one("a.docx")
        assert (document.title, document.title_stated) == ("Stated title", True)
        assert headings(document) == [("The Title",), ("One",), ("One", "Two")]
        assert "Text é 收购 of snake_case." in text_of(document)

    def test_without_it_the_first_title_or_heading(self) -> None:
        write("a.docx", file_maker.docx(self.PARAGRAPHS))
        assert load_one("a.docx").title == "The Title"
        write("a.docx", file_maker.docx(self.PARAGRAPHS[1:]))
        assert load_one("a.docx").title == "One"
        write("a.docx", file_maker.docx([("", "Text")]))
        document = load_one("a.docx")
        assert (document.title, document.title_stated) == ("a", False)

    def test_an_entity_that_multiplies_is_a_failure(self) -> None:
        entities = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">' + b"".join(
            b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(10)
        )
        data = file_maker.docx([("", "TEXT")])
        write(
            "a.docx",
            changed(
                data,
                "word/document.xml",
                lambda part: entities + b"]>" + part.replace(b"TEXT", b"&k;"),
            ),
        )
        assert str(fail_one("a.docx").error).startswith("a.docx: ")


class TestPptx:
    def test_each_slide_is_a_section(self) -> None:
        slides = [
            ("First\nslide", "Text é\nMore", "What I say"),
            ("", "A line that names it\nand text", ""),
            ("Third", "End", ""),
        ]
        write("a.pptx", file_maker.pptx(slides))
        document = load_one("a.pptx")
        assert (document.title, document.title_stated) == ("First", True)
        assert headings(document) == [("First",), ("A line that names it",), ("Third",)]
        assert "Notes: What I say" in text_of(document)
        assert "Slide number" not in text_of(document)

    def test_without_titles_the_file_names_it(self) -> None:
        write("a.pptx", file_maker.pptx([("", "One line", "")]))
        document = load_one("a.pptx")
        assert (document.title, document.title_stated) == ("a", False)
        assert text_of(document) == "One line\n"


class TestXlsx:
    def test_each_row_says_what_its_values_are(self) -> None:
        moment = datetime.datetime(2020, 1, 2, 3, 4, 5)
        rows = [
            ["Name", "Count", "Day", "At", "Share"],
            ["Anna\nBerg", 3.0, datetime.datetime(2020, 1, 2), moment, 0.25],
            [None, None, None, None, None],
            ["Bo", True, None, None, None],
        ]
        write("a.xlsx", file_maker.xlsx({"Staff  list": rows}, "The book"))
        document = load_one("a.xlsx")
        assert (document.title, document.title_stated) == ("The book", True)
        assert text_of(document) == (
            "# Staff list\n\n"
            "Name: Anna Berg\nCount: 3\nDay: 2020-01-02\nAt: 2020-01-02 03:04:05\nShare: 0.25\n\n"
            "Name: Bo\nCount: True\n\n"
        )

    def test_each_sheet_with_a_name_is_a_section(self) -> None:
        table = [["a", "b"], [1, 2]]
        sheets = {"Sheet1": table, "Empty": [], "Two": [["# Caption"], [], *table], "表": table}
        write("a.xlsx", file_maker.xlsx(sheets))
        document = load_one("a.xlsx")
        assert (document.title, document.title_stated) == ("a", False)
        assert headings(document) == [(), ("Two",), ("表",)]
        assert "\\# Caption\n\na: 1\nb: 2\n" in text_of(document)

    def test_a_wrong_size_of_a_sheet_costs_nothing(self) -> None:
        data = file_maker.xlsx({"S": [["a", "b"], [1, 2]]})
        write(
            "a.xlsx",
            changed(
                data,
                "xl/worksheets/sheet1.xml",
                lambda part: part.replace(b'ref="A1:B2"', b'ref="A1:XFD1048576"'),
            ),
        )
        assert text_of(load_one("a.xlsx")) == "# S\n\na: 1\nb: 2\n\n"

    def test_a_large_text_is_kept_for_reading_it_again(self) -> None:
        rows = [["name", "text"], *([f"row {n}", "some words " * 20] for n in range(10_000))]
        write("a.xlsx", file_maker.xlsx({"S": rows}))
        document = load_one("a.xlsx")
        Path("a.xlsx").unlink()
        text = text_of(document)
        assert len(text) > 2_000_000
        assert max(map(len, document.read())) <= 65_536
        assert "name: row 9999\n" in text


class TestPdf:
    def test_stated_title_and_the_headings_of_the_outline(self) -> None:
        pages = [
            ["Contents", "Methods", "Results"],
            ["1 Methods", "Text of one.", "# no heading"],
            ["2.  Results", "Methods", "Text of two."],
        ]
        outline = [("Methods", 1), ("Results", 2), ("Missing", 2)]
        write("a.pdf", file_maker.pdf(pages, "The paper", outline))
        document = load_one("a.pdf")
        assert (document.title, document.title_stated) == ("The paper", True)
        assert headings(document) == [(), ("1 Methods",), ("2. Results",)]
        assert "\\# no heading" in text_of(document)

    @pytest.mark.parametrize(
        "title", [None, "", "untitled", "Microsoft Word - x.doc", "paper.tex", "---"]
    )
    def test_a_title_that_nobody_chose_is_none(self, title: str | None) -> None:
        write("a.pdf", file_maker.pdf([["Text"]], title))
        document = load_one("a.pdf")
        assert (document.title, document.title_stated) == ("a", False)
        assert text_of(document) == "Text\n"

    def test_a_password_is_named(self) -> None:
        write("a.pdf", file_maker.pdf([["Text"]], encrypted=True))
        assert str(fail_one("a.pdf").error) == "a.pdf: it is protected by a password"

    def test_a_scan_has_no_text(self) -> None:
        write("a.pdf", file_maker.pdf([[]]))
        failure = fail_one("a.pdf")
        assert str(failure.error) == "a.pdf: there is no text in it"
        assert "OCR" in (failure.error.hint or "")


def mail(*lines: str, body: str = "The body.") -> bytes:
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode("utf-8", "surrogateescape")


class TestMail:
    def test_subject_people_date_and_plain_text(self) -> None:
        write(
            "a.eml",
            mail(
                "From: =?utf-8?q?Anna_Bj=C3=B6rk?= <anna@example.org>",
                "To: Ben <ben@example.org>, c@example.org",
                "Cc: D <d@example.org>",
                "Subject: =?utf-8?b?5pS26LSt?= the",
                " plan",
                "Date: Wed, 1 May 2024 10:00:00 +0200",
                "Content-Type: text/plain; charset=utf-8",
                "Content-Transfer-Encoding: 8bit",
                body="# Not a heading é\r\n> quoted\r\n",
            ),
        )
        document = load_one("a.eml")
        assert (document.title, document.title_stated) == ("收购 the plan", True)
        assert document.metadata == {
            "from": "anna@example.org",
            "to": ["ben@example.org", "c@example.org"],
            "cc": ["d@example.org"],
            "date": "2024-05-01T10:00:00+02:00",
        }
        assert not document.markdown
        assert text_of(document) == (
            "From: Anna Björk\nTo: Ben, c@example.org\nCc: D\n\n# Not a heading é\n> quoted\n"
        )

    def test_a_page_is_converted(self) -> None:
        write(
            "a.eml",
            mail(
                "From: a@example.org",
                "Content-Type: text/html; charset=iso-8859-1",
                "Content-Transfer-Encoding: quoted-printable",
                body="<h1>Gr=FC=DFe</h1><p>Text</p>",
            ),
        )
        document = load_one("a.eml")
        assert (document.title, document.title_stated) == ("a", False)
        assert document.metadata == {"from": "a@example.org"}
        assert document.markdown
        assert text_of(document) == "From: a@example.org\n\n# Grüße\n\nText\n"

    def test_what_follows_an_attachment_is_read_too(self) -> None:
        parts = [
            "Content-Type: text/plain\r\n\r\nBefore.",
            "Content-Type: image/png\r\nContent-Disposition: inline; filename=a.png\r\n\r\nx",
            "Content-Type: text/plain; name=body.txt\r\n\r\n# After.",
        ]
        header = 'Content-Type: multipart/mixed; boundary="out"'
        body = "".join(f"--out\r\n{part}\r\n" for part in parts)
        write("a.eml", mail("Subject: S", header, body=f"{body}--out--\r\n"))
        assert text_of(load_one("a.eml")) == "Before.\n\n# After."
        page = "--out\r\nContent-Type: text/html\r\n\r\n<h1>Page</h1>\r\n"
        write("a.eml", mail("Subject: S", header, body=f"{body}{page}--out--\r\n"))
        assert text_of(load_one("a.eml")) == "Before.\n\n\\# After.\n\n# Page"

    def test_plain_text_goes_before_the_page_and_attachments_are_named(self) -> None:
        parts = [
            'Content-Type: multipart/alternative; boundary="in"\r\n\r\n'
            "--in\r\nContent-Type: text/plain\r\n\r\nPlain words\r\n"
            "--in\r\nContent-Type: text/html\r\n\r\n<p>Page words</p>\r\n--in--\r\n",
            "Content-Type: text/plain\r\nContent-Disposition: attachment;"
            ' filename="notes.txt"\r\n\r\nAttached words\r\n',
            "Content-Type: application/pdf\r\nContent-Disposition: attachment;"
            " filename*=utf-8''%e6%94%b6.pdf\r\n\r\n%PDF\r\n",
        ]
        body = "".join(f"--out\r\n{part}" for part in parts) + "--out--\r\n"
        write(
            "a.eml", mail("Subject: S", 'Content-Type: multipart/mixed; boundary="out"', body=body)
        )
        document = load_one("a.eml")
        assert text_of(document).strip() == "Plain words"
        assert document.metadata == {"attachments": ["notes.txt", "收.pdf"]}

    @pytest.mark.parametrize(
        ("date", "stored"),
        [
            ("Wed, 1 May 2024 10:00:00 -0000", "2024-05-01T10:00:00+00:00"),
            ("1 May 2024 10:00:00 EST", "2024-05-01T10:00:00-05:00"),
            ("yesterday", None),
            ("", None),
        ],
    )
    def test_dates_have_an_offset(self, date: str, stored: str | None) -> None:
        write("a.eml", mail("Subject: S", f"Date: {date}"))
        assert load_one("a.eml").metadata.get("date") == stored

    @pytest.mark.parametrize(
        "kind", ["text/plain; charset=nonsense", "text/plain", "text/plain; charset=us-ascii"]
    )
    def test_what_a_message_says_of_its_encoding_may_be_wrong(self, kind: str) -> None:
        write("a.eml", mail("Subject: S", f"Content-Type: {kind}", body="Grüße 收购"))
        assert text_of(load_one("a.eml")) == "Grüße 收购"
        write("a.eml", mail("Subject: S", f"Content-Type: {kind}") + b" caf\xe9")
        assert text_of(load_one("a.eml")) == "The body. café"

    @pytest.mark.parametrize("content", [b"no headers\n\ntext", bytes(range(256)) * 10, b"\n"])
    def test_what_is_no_mail(self, content: bytes) -> None:
        write("a.eml", content)
        assert "it is not a message of electronic mail" in str(fail_one("a.eml").error)

    def test_without_a_body_it_is_a_failure(self) -> None:
        write("a.eml", mail("Subject: S", "Content-Type: image/png", body="x"))
        assert str(fail_one("a.eml").error) == "a.eml: there is no text in its body"


class TestFailures:
    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("a.pdf", b"", "the file is empty"),
            ("a.docx", b"", "the file is empty"),
            ("a.html", b"", "the file is empty"),
            ("a.html", b"<p> </p>", "there is no text in it"),
            ("a.pdf", b"no pdf", "it is not a PDF file"),
            ("a.pdf", b"%PDF-1.4\nnonsense", "it is damaged, or not a PDF file"),
            ("a.docx", b"no zip", "it is not a document of Word, or it is damaged: "),
            ("a.docx", file_maker.docx([("", "x")])[:-60], "it is not a document of Word, or "),
            ("a.pptx", b"PK\x03\x04", "it is not a presentation of PowerPoint, or it is damaged: "),
            ("a.pptx", file_maker.docx([]), "it is a zip archive, but not a presentation of Power"),
            ("a.xlsx", file_maker.docx([]), "it is a zip archive, but not a workbook of Excel"),
            (
                "a.docx",
                b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"),
                "it is protected by a password",
            ),
            (
                "a.xlsx",
                b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99),
                "it has the format of Office before 2007",
            ),
            ("a.xlsx", file_maker.zip_file({"xl/workbook.xml": "no xml"}), "cannot be converted: "),
            ("a.docx", file_maker.zip_file({"word/document.xml": "<"}), "cannot be converted: "),
            (
                "a.docx",
                file_maker.zip_bomb("word/document.xml", 1200 * 2**20),
                "it unpacks to 1200 MiB; up to 1024 MiB can be converted",
            ),
        ],
    )
    def test_a_file_that_cannot_be_converted(self, name: str, content: bytes, message: str) -> None:
        write("0.html", "first")
        write(name, content)
        write("z.html", "last")
        first, failure, last = load(".")
        assert isinstance(first, SourceDocument)
        assert isinstance(last, SourceDocument)
        assert text_of(last) == "last\n"
        assert isinstance(failure, LoadFailure)
        assert failure.source == name
        assert failure.file is None
        assert str(failure.error).startswith(f"{name}: {message}")
        assert "\n" not in str(failure.error)
        assert failure.error.hint

    def test_a_file_may_be_too_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(converted, "_SIZE_LIMIT", 2**20)
        write("a.html", b"x" * (3 * 2**20))
        assert "the file has 3 MiB; up to 1 MiB of a .html file" in str(fail_one("a.html").error)

    def test_a_file_that_vanishes(self) -> None:
        write("docs/a.html", "x")
        write("docs/b.html", "x")
        found = load_paths(["docs"])
        next(found)
        Path("docs/b.html").unlink()
        failure = next(found)
        assert isinstance(failure, LoadFailure)
        assert "No such file" in str(failure.error)

    def test_names_may_be_odd(self) -> None:
        name = 'it\'s $$ %s \\ "q" \U0001f600 \u202e\n.html'
        write(name, "text")
        assert load_one(name).source == name
        assert text_of(load_one(name)) == "text\n"

    def test_a_name_that_is_not_utf8(self) -> None:
        try:
            Path(os.fsdecode(b"caf\xe9.html")).write_text("text")
        except OSError:
            pytest.skip("the file system takes UTF-8 names only")
        document = load_one(os.fsdecode(b"caf\xe9.html"))
        assert (document.source, text_of(document)) == ("caf%E9.html", "text\n")


class TestProcess:
    def test_want_of_memory_is_said_though_closing_fails_too(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def convert(path: Path) -> None:
            try:
                raise MemoryError
            finally:
                raise ValueError("I/O operation on closed file.")

        monkeypatch.setattr("sag_pg.ingest.conversion.html.convert", convert)
        answers = io.BytesIO()
        assert child._answer(Path("a.html"), ".html", answers)
        assert "more than 3 GiB of memory" in json.loads(answers.getvalue())["error"]

    def endless(self) -> None:
        """Write a workbook that says its second row is the one with the number 10^14."""
        data = file_maker.xlsx({"S": [["a", "b"], [1, 2]]})
        write(
            "endless.xlsx",
            changed(
                data,
                "xl/worksheets/sheet1.xml",
                lambda part: (
                    part.replace(b'r="2"', b'r="99999999999999"')
                    .replace(b'r="A2"', b'r="A99999999999999"')
                    .replace(b'r="B2"', b'r="B99999999999999"')
                ),
            ),
        )

    def load_with(self, converter: Converter, name: str) -> SourceDocument | LoadFailure:
        return converted.load_converted(Path(name), name, stem="stem", size=1, converter=converter)

    def test_what_takes_too_long_is_stopped_and_the_next_is_converted(self) -> None:
        self.endless()
        write("b.eml", mail("Subject: S"))
        with Converter(seconds=3) as converter:
            failure = self.load_with(converter, "endless.xlsx")
            assert isinstance(failure, LoadFailure)
            assert "took longer than 3 seconds and was stopped" in str(failure.error)
            assert isinstance(self.load_with(converter, "b.eml"), SourceDocument)

    def test_a_process_that_dies_is_a_failure_of_one_file(self) -> None:
        self.endless()
        write("b.eml", mail("Subject: S"))
        with Converter() as converter:
            assert isinstance(self.load_with(converter, "b.eml"), SourceDocument)
            process = converter._process
            assert process is not None
            timer = threading.Timer(0.5, process.send_signal, [signal.SIGSEGV])
            timer.start()
            failure = self.load_with(converter, "endless.xlsx")
            assert isinstance(failure, LoadFailure)
            assert "its conversion crashed" in str(failure.error)
            assert isinstance(self.load_with(converter, "b.eml"), SourceDocument)
            assert converter._process is not process

    def test_one_process_converts_all_and_ends_with_the_iterator(self) -> None:
        for number in range(5):
            write(f"docs/{number}.eml", mail("Subject: S"))
        with Converter() as converter:
            processes = set()
            for number in range(5):
                self.load_with(converter, f"docs/{number}.eml")
                processes.add(converter._process)
            (process,) = processes
            assert process is not None
            assert process.poll() is None
        assert process.poll() is not None

    def test_no_file_to_convert_starts_no_process(self) -> None:
        write("a.txt", "text")
        with Converter() as converter:
            assert converter._process is None

    def test_an_interrupt_is_left_to_the_parent(self) -> None:
        write("a.eml", mail("Subject: S"))
        with Converter() as converter:
            self.load_with(converter, "a.eml")
            process = converter._process
            assert process is not None
            process.send_signal(signal.SIGINT)
            assert isinstance(self.load_with(converter, "a.eml"), SourceDocument)
            assert converter._process is process

    def test_files_are_converted_from_any_thread(self) -> None:
        for number in range(4):
            write(f"{number}.html", f"<h1>T{number}</h1>text")
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(load_one, [f"{number}.html" for number in range(4)]))
        assert [document.title for document in found] == ["T0", "T1", "T2", "T3"]

    def test_a_working_directory_may_change(self, monkeypatch: pytest.MonkeyPatch) -> None:
        write("one/a.html", "first")
        write("two/a.html", "second")
        found = []
        with Converter() as converter:
            for directory in ("one", "two"):
                with monkeypatch.context() as context:
                    context.chdir(directory)
                    document = self.load_with(converter, "a.html")
                assert isinstance(document, SourceDocument)
                found.append(text_of(document))
        assert found == ["first\n", "second\n"]

    def test_a_package_that_is_missing_is_named_with_its_extra(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Stand before the real ones in the path, and cannot be found as modules are.
        for name in ("markitdown", "openpyxl"):
            write(
                f"shadow/{name}/__init__.py",
                f"raise ModuleNotFoundError('No module named {name}', name={name!r})",
            )
        monkeypatch.syspath_prepend(str(Path("shadow").absolute()))
        write("a.html", "text")
        write("b.xlsx", file_maker.zip_file({"xl/a": ""}))
        write("c.eml", mail("Subject: S"))
        page, workbook, message = load("a.html", "b.xlsx", "c.eml")
        for failure, package in ((page, "markitdown"), (workbook, "openpyxl")):
            assert isinstance(failure, LoadFailure)
            assert f"files need the package {package}, which is not inst" in str(failure.error)
            assert failure.error.hint == "Run pip install 'sag-pg[files]'."
        assert isinstance(message, SourceDocument)

    def test_converters_are_quiet(self, capfd: pytest.CaptureFixture[str]) -> None:
        write("a.html", "<div>" * 5000 + "deep" + "</div>" * 5000)
        write("b.pdf", "%PDF-1.4\nnonsense")
        write("c.docx", file_maker.docx(TestDocx.PARAGRAPHS))
        load(".")
        assert capfd.readouterr() == ("", "")
