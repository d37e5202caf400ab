import itertools
import random
import tracemalloc
from collections.abc import Iterator

import pytest

from sag_pg.errors import ConfigurationError
from sag_pg.ingest.chunking import Chunk, chunk, first_heading


def cut(
    document: str, *, markdown: bool = False, maximum: int | None = 1200, minimum: int = 200
) -> list[Chunk]:
    """Chunk a document and check what holds for every document."""
    chunks = list(
        chunk([document], markdown=markdown, max_characters=maximum, min_characters=minimum)
    )
    position = 0
    for ordinal, part in enumerate(chunks):
        assert part.ordinal == ordinal
        assert document[part.start_offset : part.end_offset] == part.content
        assert part.content == part.content.strip() != ""
        assert part.start_offset >= position
        assert not document[position : part.start_offset].strip()
        position = part.end_offset
        if maximum is not None:
            assert len(part.content) <= maximum * 1.25
    assert not document[position:].strip()
    return chunks


def contents(document: str, **options: int | bool | None) -> list[str]:
    return [part.content for part in cut(document, **options)]  # type: ignore[arg-type]


def split_at_random(document: str, rng: random.Random) -> list[str]:
    count = rng.randint(0, min(12, len(document)))
    edges = [0, *sorted(rng.choices(range(len(document) + 1), k=count)), len(document)]
    return [document[start:end] for start, end in itertools.pairwise(edges)]


TOKENS = [
    *("word ", "Words. ", "Dr. Li said! ", "收购了那家公司。", "后来，", "？」", "\u0645\u0631. "),
    *("\n", "\n\n", "\r\n", "\r\n\r\n", " \n \t\n", "   ", "\u3000", "\x0c", "\u2028", "\r"),
    *("# Top\n", "## Deeper ##\n", "### \n", "\n\nUnder\n===\n", "\nLine\n---\n", "#none "),
    *("```\n", "~~~~\n", "    # code\n", "- item\n", "x" * 70, "\N{REPLACEMENT CHARACTER}"),
    *("e\u0301" * 9, "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 3, "\U0001f1e9\U0001f1ea" * 5),
]


@pytest.mark.parametrize("seed", range(200))
def test_any_document_is_covered_and_the_pieces_do_not_matter(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    document = "".join(rng.choices(TOKENS, k=rng.randint(0, 400)))
    if rng.random() < 0.2:
        document = document.replace("word ", " " * rng.choice([500, 1500, 3000]))
    markdown = rng.random() < 0.7
    maximum = rng.choice([1, 2, 7, 40, 120, 1200])
    minimum = rng.choice([0, 1, 20, 200])
    chunks = cut(document, markdown=markdown, maximum=maximum, minimum=minimum)
    again = chunk(
        split_at_random(document, rng),
        markdown=markdown,
        max_characters=maximum,
        min_characters=minimum,
    )
    assert list(again) == chunks


@pytest.mark.parametrize("seed", range(3))
def test_pieces_do_not_matter_in_documents_larger_than_the_buffer(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    runs = [" " * 70_000, "y" * 70_000, "\n" * 3000, "# A\n" + "\n" * 70_000 + "## B\n", "# C\n"]
    document = "".join(rng.choices([*TOKENS, *runs], weights=[1] * len(TOKENS) + [0.2] * 5, k=1000))
    for markdown in (False, True):
        chunks = cut(document, markdown=markdown)
        for _ in range(3):
            assert list(chunk(split_at_random(document, rng), markdown=markdown)) == chunks
        single = chunk(iter(document), markdown=markdown)
        assert list(itertools.islice(single, 40)) == chunks[:40]


@pytest.mark.parametrize("seed", range(50))
def test_a_chunk_stays_below_its_headings(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    document = ""
    path: list[tuple[int, str]] = []
    expected = []
    for number in range(rng.randint(1, 15)):
        level = rng.randint(1, 6)
        path = [(lvl, name) for lvl, name in path if lvl < level] + [(level, f"H{number}")]
        document += f"{'#' * level} H{number}\n\n"
        begin = len(document)
        document += "Some sentence here. " * rng.randint(1, 120) + "\n\n"
        expected.append((begin, len(document), tuple(name for _, name in path)))
    chunks = cut(document, markdown=True, maximum=rng.choice([100, 400, 1200]))
    for begin, end, headings in expected:
        inside = [c for c in chunks if c.start_offset < end and c.end_offset > begin]
        assert inside
        assert {c.heading_path for c in inside} == {headings}
    for part in chunks:
        assert part.content.count("#") == 0 or part.content.lstrip().startswith("#")


@pytest.mark.parametrize("document", ["", " ", "\n\n\r\n\t \u3000", "\x0b" * 5000])
@pytest.mark.parametrize("maximum", [None, 1, 1200])
@pytest.mark.parametrize("markdown", [False, True])
def test_blank_documents_have_no_chunks(document: str, maximum: int | None, markdown: bool) -> None:
    assert cut(document, maximum=maximum, markdown=markdown) == []


def test_offsets_leave_out_white_space() -> None:
    assert cut("\n  One line.\r\n\n") == [Chunk(0, (), "One line.", 3, 12)]


def test_offsets_count_characters_and_not_bytes() -> None:
    document = "\U0001f600\U0001f600 收购\n\n" + "b" * 30
    assert cut(document, maximum=30, minimum=1) == [
        Chunk(0, (), "\U0001f600\U0001f600 收购", 0, 5),
        Chunk(1, (), "b" * 30, 7, 37),
    ]


def test_without_a_limit_the_document_is_one_chunk() -> None:
    document = "\n# Title\n\n" + "A sentence. " * 500 + "\n\n## Next\n\nMore.\n"
    (only,) = cut(document, markdown=True, maximum=None)
    assert only == Chunk(0, (), document.strip(), 1, len(document) - 1)


def test_whole_paragraphs_are_packed() -> None:
    a, b, c = "a" * 40, "b" * 50, "c" * 60
    assert contents(f"{a}\n\n{b}\n\n{c}", maximum=100, minimum=10) == [f"{a}\n\n{b}", c]


@pytest.mark.parametrize("blank", ["\n\n", "\r\n\r\n", "\r\r", "\n \t \n", "\n\n\n\n"])
def test_blank_lines_of_every_kind_end_a_paragraph(blank: str) -> None:
    first, second = "One. Two. Three.", "Four. Five. Six."
    assert contents(first + blank + second, maximum=24, minimum=1) == [first, second]


def test_one_windows_line_end_is_no_blank_line() -> None:
    document = "One two.\r\nThree four. Five six seven eight."
    assert contents(document, maximum=25, minimum=1) == [
        "One two.\r\nThree four.",
        "Five six seven eight.",
    ]


def test_paragraphs_that_fill_the_limit_exactly_are_kept() -> None:
    first, second = "a" * 20 + "\n\n" + "b" * 28, "c" * 50
    assert contents(f"{first}\n\n{second}", maximum=50, minimum=10) == [first, second]


def test_a_small_paragraph_takes_sentences_of_the_next_along() -> None:
    document = "Small.\n\n" + "This sentence has exactly forty letters. " * 5
    first, *_ = contents(document, maximum=100, minimum=50)
    assert first == document[: len("Small.\n\n") + 2 * 41 - 1]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("It ends here.", "It goes on."),
        ("Does it end here?", "It does."),
        ('He said: "It ends."', "She left."),
        ("(It ends here!)", "It goes on."),
        ("它在这里结束。", "它继续下去了吗？"),
        ("他说：「到此为止！」", "然后他走了。"),
        ("真的吗？！", "是真的。"),
        ("A line that ends without a mark", "and a second one"),
    ],
)
def test_a_long_paragraph_is_cut_between_sentences(first: str, second: str) -> None:
    gap = "" if first.endswith(("。", "」")) or "吗" in first else " "
    if first.endswith("mark"):
        gap = "\n"
    limit = max(len(first), len(second)) + 1
    assert contents(first + gap + second, maximum=limit, minimum=0) == [first, second]


@pytest.mark.parametrize(
    "sentence",
    [
        "He met Dr. Smith of Rome.",
        "She read J. R. R. Tolkien.",
        "The firm Yahoo! was sold.",
        "It costs 3.14 or so today.",
        "Version 2.0.1 of it is out.",
    ],
)
def test_a_full_stop_does_not_always_end_a_sentence(sentence: str) -> None:
    opening = "An opening of some length."
    maximum = len(opening) + len(sentence) - 1
    assert contents(f"{opening} {sentence}", maximum=maximum, minimum=0) == [opening, sentence]


def test_a_long_sentence_is_cut_at_white_space() -> None:
    parts = contents("seven letters " * 20, maximum=50, minimum=10)
    assert {len(part) <= 50 for part in parts} == {True}
    assert {word for part in parts for word in part.split()} == {"seven", "letters"}


def test_a_long_chinese_sentence_is_cut_after_a_comma() -> None:
    parts = contents("他先去了北京，" * 20, maximum=30, minimum=5)
    assert all(part.endswith("，") for part in parts)


def test_a_long_word_is_cut_hard() -> None:
    assert [len(part) for part in contents("x" * 100_000)] == [1200] * 83 + [400]


@pytest.mark.parametrize(
    "cluster",
    [
        "e\u0301",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\U0001f44d\U0001f3fd",
        "\u2764\ufe0f",
        "\U0001f1e9\U0001f1ea",
        "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    ],
)
@pytest.mark.parametrize("lead", range(7))
def test_a_hard_cut_keeps_what_is_seen_as_one_character(cluster: str, lead: int) -> None:
    document = "x" * (40 + lead) + cluster * 2 + "y" * 60
    parts = contents(document, maximum=48, minimum=10)
    assert len(parts) > 1
    assert "".join(part.replace(cluster, "") for part in parts).strip("xy") == ""


def test_an_endless_cluster_is_cut_all_the_same() -> None:
    assert [len(part) for part in contents("e" + "\u0301" * 299, maximum=100)] == [100] * 3


def test_a_tiny_tail_joins_its_predecessor() -> None:
    document = "a" * 96 + ".\n\nA tail."
    assert contents(document, maximum=100, minimum=20) == [document]


def test_a_tail_that_would_stretch_too_far_stands_alone() -> None:
    document = "a" * 97 + ".\n\n" + "b" * 30
    assert contents(document, maximum=100, minimum=50) == ["a" * 97 + ".", "b" * 30]


def test_a_tail_does_not_join_across_a_heading() -> None:
    document = "# One\n\n" + "a" * 92 + "\n\n# Two\n\ntiny\n"
    parts = cut(document, markdown=True, maximum=100, minimum=50)
    assert [part.heading_path for part in parts] == [("One",), ("Two",)]


def test_a_heading_begins_the_chunk_below_it() -> None:
    document = "Preface.\n\n# One #\nText.\n\n## Two\n\nText.\n\n# Three\nText.\n"
    assert [(part.heading_path, part.content) for part in cut(document, markdown=True)] == [
        ((), "Preface."),
        (("One",), "# One #\nText."),
        (("One", "Two"), "## Two\n\nText."),
        (("Three",), "# Three\nText."),
    ]


def test_headings_without_text_go_along_with_deeper_ones_only() -> None:
    document = "# One\n\n## Two\n### Three\nText.\n# Bare\n# Four\nText.\n## End\n"
    assert [(part.heading_path, part.content) for part in cut(document, markdown=True)] == [
        (("One", "Two", "Three"), "# One\n\n## Two\n### Three\nText."),
        (("Bare",), "# Bare"),
        (("Four",), "# Four\nText."),
        (("Four", "End"), "## End"),
    ]


@pytest.mark.parametrize("blank", [3000, 100_000])
def test_a_heading_far_above_the_next_stands_alone(blank: int) -> None:
    document = "# One\n" + "\n" * blank + "## Two\nText."
    assert [(part.heading_path, part.content) for part in cut(document, markdown=True)] == [
        (("One",), "# One"),
        (("One", "Two"), "## Two\nText."),
    ]


def test_every_chunk_of_a_long_section_has_its_headings() -> None:
    parts = cut("# One\n\n## Two\n\n" + "A sentence. " * 1000, markdown=True)
    assert len(parts) > 5
    assert {part.heading_path for part in parts} == {("One", "Two")}


def test_underlined_headings() -> None:
    document = "Title\n=====\n\nText.\n\nPart\n----\nMore.\n\n---\n\nLast.\n"
    assert [(part.heading_path, part.content) for part in cut(document, markdown=True)] == [
        (("Title",), "Title\n=====\n\nText."),
        (("Title", "Part"), "Part\n----\nMore.\n\n---\n\nLast."),
    ]


@pytest.mark.parametrize(
    "document",
    [
        "```sh\n# comment\n```\nText.",
        "~~~\n# comment\n```\n# comment\n~~~\nText.",
        "````\n```\n# comment\n````\nText.",
        "```\n# an open block goes to the end",
        "    # indented code",
        "#tag\n####### seven",
        "- item\n---\nText.",
        "| a |\n|---|\nText.",
        "---\ntitle: x\ndate: y\n---\nText.",
        "Two lines of\na paragraph\n---\nText.",
        "# " + "long " * 300,
    ],
)
def test_what_is_no_heading(document: str) -> None:
    assert {part.heading_path for part in cut(document, markdown=True)} == {()}


def test_plain_text_has_no_headings() -> None:
    (only,) = cut("# One\n\nText.\n\n# Two\n\nText.")
    assert only.heading_path == ()


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_headings_with_every_line_end(newline: str) -> None:
    document = newline.join(["# One", "Text.", "", "Two", "---", "Text.", ""])
    assert [part.heading_path for part in cut(document, markdown=True)] == [
        ("One",),
        ("One", "Two"),
    ]


@pytest.mark.parametrize(
    ("document", "title"),
    [
        ("Intro\n\n# The *title* ##\n\n# Second", "The *title*"),
        ("Title\n===\n", "Title"),
        ("#\n\n# C#\n", "C#"),
        ("## Only deeper", None),
        ("```\n# comment\n```", None),
        ("", None),
    ],
)
def test_first_heading(document: str, title: str | None) -> None:
    assert first_heading([document]) == title
    assert first_heading(document) == title


@pytest.mark.parametrize(("maximum", "minimum"), [(0, 200), (-5, 200), (1200, -1)])
def test_impossible_limits_are_refused_at_once(maximum: int, minimum: int) -> None:
    with pytest.raises(ConfigurationError) as caught:
        chunk([], markdown=False, max_characters=maximum, min_characters=minimum)
    assert str(maximum if maximum < 1 else minimum) in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "piece",
    [
        "x" * 65_536,
        f"{' ' * 63}\n" * 1024,
        "wordy " * 10_922,
        f"# Heading\n{'x' * 60}\n" * 910,
        "." * 65_536,
    ],
    ids=["no white space", "blank", "one line", "headings", "full stops"],
)
@pytest.mark.parametrize("markdown", [False, True])
def test_memory_does_not_grow_with_the_document(piece: str, markdown: bool) -> None:
    def peak(pieces: int) -> int:
        tracemalloc.start()
        for _ in chunk(itertools.repeat(piece, pieces), markdown=markdown):
            pass
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(2)
    assert peak(6) < peak(3) + 100_000


def test_chunks_come_before_the_document_ends() -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "A sentence of an endless text. " * 100

    parts = list(itertools.islice(chunk(endless(), markdown=True), 1000))
    assert len(parts) == 1000
    assert taken * 3100 < parts[-1].end_offset + 200_000
