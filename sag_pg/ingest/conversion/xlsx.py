"""Converts workbooks of Excel."""

import datetime
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import openpyxl

from sag_pg.ingest.conversion.office import check_package, stated_title
from sag_pg.ingest.conversion.result import Converted
from sag_pg.ingest.conversion.tidying import escape
from sag_pg.ingest.records import record_text

# Names that the program gave, in some of its languages: no heading that says something.
_UNNAMED = re.compile(
    r"(?:sheet|tabelle|feuil|feuille|hoja|foglio|planilha|blad|ark|arkusz|лист|工作表|シート|시트)"
    r"\s*\d*",
    re.IGNORECASE,
)


def convert(path: Path) -> Converted:
    """Convert a .xlsx file: each sheet is a section, each row a paragraph of `column: value`."""
    check_package(path, "xl", "a workbook of Excel")
    return Converted(_text(path), stated_title(path))


def _text(path: Path) -> Iterator[str]:
    # data_only: what formulas had as their values when the file was saved.
    workbook = openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)
    try:
        for sheet in workbook.worksheets:
            # What a sheet says about its size may be far from it.
            sheet.reset_dimensions()
            is_begun = _UNNAMED.fullmatch(sheet.title) is not None
            for record in record_text(_rows(sheet)):
                if not is_begun:
                    yield f"# {' '.join(sheet.title.split())}\n\n"
                    is_begun = True
                yield escape(record)
    finally:
        workbook.close()


def _rows(sheet: Any) -> Iterator[Sequence[str]]:
    for row in sheet.iter_rows(values_only=True):
        yield [_shown(value) for value in row]


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        value = value.date()
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ", "seconds")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
