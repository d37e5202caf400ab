"""What all extractors agree upon: what a name is, and which names say what a passage is about."""

import re
import unicodedata
from collections.abc import Iterable, Iterator

from sag_pg.models.base import Passage
from sag_pg.text import clean

LONGEST_NAME = 200

_TRAILING_BRACKET = re.compile(r"^(.*\S)\s*(?:\([^()]*\)|（[^（）]*）)\s*$", re.DOTALL)
_NUMBERING = re.compile(r"^\s*(?:\d+(?:\.\d+)*[.)]?\s+|第?[一二三四五六七八九十\d]+[章节、]\s*)")
_LEADING_ARTICLE = re.compile(r"^(?:the|an?)\s+")
_CONTROL = re.compile(r"[\x01-\x08\x0b-\x1f\x7f-\x9f]")

# Headings that say which part of a document this is, not what it is about.
_NO_SUBJECTS = frozenset(
    [
        *("see also", "external links", "further reading", "table of contents", "read me"),
        *"""
        abstract acknowledgements acknowledgments appendix background bibliography changelog
        conclusion conclusions contents description discussion examples faq general history index
        introduction notes overview preface readme references results sources summary untitled
        介绍 简介 概述 概况 概要 摘要 引言 前言 序言 导言 背景 历史 正文 目录 总结 小结 结论 结语
        附录 注释 参考 参考文献 参考资料 参见 外部链接 致谢 说明 其他
        はじめに 概説 まとめ 目次 脚注 関連項目 개요 서론 결론
        """.split(),  # noqa: SIM905
    ]
)


def subjects(passage: Passage) -> Iterator[str]:
    """Yield what a passage is about: its title, with and without a bracket, and its heading."""
    if _says_something(passage.title):
        yield passage.title
        bracketed = _TRAILING_BRACKET.match(passage.title)
        if bracketed:
            yield bracketed.group(1)
    # Under "Acme > Overview" the text is about Acme.
    yield from [heading for heading in passage.heading_path if _says_something(heading)][-1:]


def clean_name(name: str) -> str:
    """Return a name as it is stored: in one line, without quotes and commas around it."""
    return " ".join(without_control(name).split()).strip(" ,;:、，；：。\"“”'‘’")


def without_control(text: str) -> str:
    """Replace what cannot be stored or could steer a terminal; line breaks and tabs stay."""
    return _CONTROL.sub(" ", clean(text))


def distinct_names(stated: Iterable[object]) -> list[str]:
    """Clean what a model states as names, in its order: what is no name and repetitions go."""
    names: dict[str, str] = {}
    for name in stated:
        if isinstance(name, str) and is_name(cleaned := clean_name(name)):
            names.setdefault(name_key(cleaned), cleaned)
    return list(names.values())


def name_key(name: str) -> str:
    """Return what two spellings of a cleaned name have in common.

    The database folds names further; this is to keep a list free of repetitions.
    """
    return _LEADING_ARTICLE.sub("", unicodedata.normalize("NFKC", name).casefold())


def is_name(name: str) -> bool:
    """Tell whether a cleaned name can serve as an index point."""
    if not 2 <= len(name) <= LONGEST_NAME:
        return False
    # A year is a name, a smaller number ties nothing together.
    return any(map(str.isalpha, name)) or sum(map(str.isdecimal, name)) >= 4


def _says_something(heading: str) -> bool:
    plain = _NUMBERING.sub("", heading).strip(" .:：#*").casefold()
    return bool(plain) and plain not in _NO_SUBJECTS
