import csv
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from loading import fail_one, load_one, text_of, write

from sag_pg.errors import LoadError
from sag_pg.ingest.chunking import chunk
from sag_pg.ingest.loaders import table


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def text(content: str | bytes) -> str:
    write("a.csv", content)
    return text_of(load_one("a.csv"))


def test_each_row_says_what_its_values_are() -> None:
    write("Staff list.csv", 'Name,Role,"Born, in"\nAnna,CTO,1970\n\n"Bo ""B"" Li",,"x\n\ny"\n')
    document = load_one("Staff list.csv")
    assert (document.source, document.title) == ("Staff list.csv", "Staff list")
    assert not document.markdown
    assert document.size == Path("Staff list.csv").stat().st_size
    assert text_of(document) == (
        'Name: Anna\nRole: CTO\nBorn, in: 1970\n\nName: Bo "B" Li\nBorn, in: x y\n\n'
    )


def test_no_chunk_cuts_a_row_that_fits() -> None:
    rows = "".join(f"Person {n},{n},Some words about person {n}.\n" for n in range(200))
    document = text("Name,Number,About\n" + rows)
    parts = list(chunk([document], markdown=False, max_characters=300))
    assert len(parts) > 20
    for part in parts:
        assert part.content.startswith("Name: Person")
        assert part.content.count("Name: ") == part.content.count("About: ")


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found(delimiter: str) -> None:
    rows = [["Name", "Price", "Text"], ["a", "1,5; x", "y|z"], ["b", "2,5; x", "z|z"]]
    lines = [delimiter.join(f'"{cell}"' for cell in row) for row in rows]
    assert text("\n".join(lines)).startswith("Name: a\nPrice: 1,5; x\nText: y|z\n\n")


def test_commas_in_numbers_do_not_hide_a_semicolon() -> None:
    assert text("Name;Price\na;1,5\nb;2,5\n") == "Name: a\nPrice: 1,5\n\nName: b\nPrice: 2,5\n\n"


def test_a_stated_delimiter_counts() -> None:
    assert text("sep=~\r\nA~B,C\r\n1~2,3\r\n") == "A: 1\nB,C: 2,3\n\n"


@pytest.mark.parametrize("stated", ['"', "\r"])
def test_what_cannot_be_a_delimiter_is_none(stated: str) -> None:
    assert text(f"sep={stated}\r\nA,B\r\n1,2\r\n").endswith("A: 1\nB: 2\n\n")


def test_a_space_that_separates_is_no_white_space(monkeypatch: pytest.MonkeyPatch) -> None:
    made = csv.reader

    def strict(lines: Any, delimiter: str, skipinitialspace: bool) -> Any:
        # As newer versions of Python have it.
        if delimiter == " " and skipinitialspace:
            raise ValueError("bad delimiter or skipinitialspace value")
        return made(lines, delimiter=delimiter, skipinitialspace=skipinitialspace)

    monkeypatch.setattr("csv.reader", strict)
    assert text("sep= \nA B\n1 2\n") == "A: 1\nB: 2\n\n"


def test_rows_may_be_of_any_width() -> None:
    assert text("a,,c\n1,2,3,4\n5\n") == "a: 1\ncolumn 2: 2\nc: 3\ncolumn 4: 4\n\na: 5\n\n"


def test_numbers_alone_name_no_columns() -> None:
    assert text("1,2.5\n3,4\n") == "column 1: 1\ncolumn 2: 2.5\n\ncolumn 1: 3\ncolumn 2: 4\n\n"
    assert text("Land,2019\nX,1\n") == "Land: X\n2019: 1\n\n"


def test_one_column_is_a_list() -> None:
    assert text("Names\nAnna\nBo\n") == "Names\n\nAnna\n\nBo\n\n"


@pytest.mark.parametrize(
    ("encoding", "word"),
    [
        ("utf-8", "Müller 收购 \U0001f600"),
        ("utf-8-sig", "Müller"),
        ("utf-16", "Müller 收购"),
        ("cp1252", "Müller, Bäcker und Söhne grüßen höflich für größere Aufträge"),
        ("gb18030", "中文的表格和更多的汉字在这里"),
        ("shift_jis", "これは日本語の表です。ありがとうございます"),
    ],
)
def test_encodings_are_found(encoding: str, word: str) -> None:
    content = "Ort;Text\n" + "".join(f"{n};{word}\n" for n in range(20))
    assert text(content.encode(encoding)).startswith(f"Ort: 0\nText: {word}\n\n")


def test_bad_characters_are_replaced_one_for_one() -> None:
    assert text(b"a,b\nx\x00y,\xed\xa0\x80\n") == "a: x�y\nb: �\n\n"


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b"a,b,c\n", b",,\n,,\n"])
def test_without_rows_it_is_a_failure(content: bytes) -> None:
    write("a.csv", content)
    assert str(fail_one("a.csv").error) == "a.csv: there are no rows in it"


def test_binary_is_refused() -> None:
    write("a.csv", b"\x89PNG\r\n\x1a\n" + bytes(500))
    assert "a.csv: not UTF-8 text: a control character" in str(fail_one("a.csv").error)


def test_a_quotation_mark_that_stays_open_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_ROW_LIMIT", 1000)
    write("a.csv", 'a,b\n1,"2\n' + "x,y\n" * 1000)
    assert "a row is longer than" in str(fail_one("a.csv").error)


def test_a_row_that_grows_too_long_further_down_is_found_while_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "_ROW_LIMIT", 1000)
    write("a.csv", "a,b\n" + "x,y\n" * 10_000 + '1,"2\n' + "x,y\n" * 1000)
    document = load_one("a.csv")
    with pytest.raises(LoadError, match=r"a\.csv:10\d\d\d: a row is longer"):
        text_of(document)


def test_long_values_are_kept() -> None:
    assert text("a,b\n1," + "x" * 500_000) == "a: 1\nb: " + "x" * 500_000 + "\n\n"


def test_a_large_table_takes_little_memory() -> None:
    with Path("a.csv").open("w", encoding="utf-8") as file:
        file.write("name,text\n")
        for number in range(100_000):
            file.write(f"name {number},some words about it 收购\n")
    tracemalloc.start()
    document = load_one("a.csv")
    pieces = sum(1 for _ in document.read())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pieces > 50
    assert peak < 3_000_000
