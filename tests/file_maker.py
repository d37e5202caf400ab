"""Makes small files of the types that are converted."""

import io
import zipfile
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels"'
    ' ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Default Extension="png" ContentType="image/png"/>'
    '<Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-'
    'officedocument.wordprocessingml.document.main+xml"/></Types>'
)
_RELATIONS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    '<Relationship Id="rId1" Type="http://schemas.openxmlformats.org/officeDocument/2006/'
    'relationships/officeDocument" Target="word/document.xml"/></Relationships>'
)


def zip_file(parts: dict[str, str | bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return target.getvalue()


def zip_bomb(name: str, size: int) -> bytes:
    """Make an archive that says its only part has many bytes."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr(name, b"")
        archive.filelist[0].file_size = size
    return target.getvalue()


def docx(paragraphs: Iterable[tuple[str, str]], title: str = "") -> bytes:
    """Make a document of Word of paragraphs: style (such as Heading1, or "") and text."""
    names = {"Title": "Title", "Heading1": "heading 1", "Heading2": "heading 2"}
    styles = "".join(
        f'<w:style w:type="paragraph" w:styleId="{key}"><w:name w:val="{name}"/></w:style>'
        for key, name in names.items()
    )
    body = "".join(
        f'<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr><w:r><w:t>{escape(text)}</w:t></w:r></w:p>'
        for style, text in paragraphs
    )
    core = (
        '<cp:coreProperties xmlns:cp="http://schemas.openxmlformats.org/package/2006/metadata/'
        'core-properties" xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<dc:title>{escape(title)}</dc:title></cp:coreProperties>"
    )
    relations = _RELATIONS.replace("word/document", "styles").replace("officeDocument", "styles")
    return zip_file(
        {
            "[Content_Types].xml": _TYPES,
            "_rels/.rels": _RELATIONS,
            "docProps/core.xml": core,
            "word/document.xml": f'<w:document xmlns:w="{_WORD}"><w:body>{body}</w:body>'
            "</w:document>",
            "word/styles.xml": f'<w:styles xmlns:w="{_WORD}">{styles}</w:styles>',
            "word/_rels/document.xml.rels": relations,
        }
    )


def pptx(slides: Iterable[tuple[str, str, str]]) -> bytes:
    """Make a presentation of slides: title, text and notes, each may be empty."""
    import pptx as python_pptx

    presentation = python_pptx.Presentation()
    for title, text, notes in slides:
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = text
        if notes:
            slide.notes_slide.notes_text_frame.text = notes
    target = io.BytesIO()
    presentation.save(target)
    return target.getvalue()


def xlsx(sheets: dict[str, Sequence[Sequence[object]]], title: str = "") -> bytes:
    """Make a workbook of sheets, row by row."""
    import openpyxl

    workbook = openpyxl.Workbook()
    workbook.remove(workbook.active)
    workbook.properties.title = title
    for name, rows in sheets.items():
        sheet = workbook.create_sheet(name)
        for row in rows:
            sheet.append(row)
    target = io.BytesIO()
    workbook.save(target)
    return target.getvalue()


def pdf(
    pages: Sequence[Sequence[str]],
    title: str | None = None,
    outline: Sequence[tuple[str, int]] = (),
    *,
    encrypted: bool = False,
) -> bytes:
    """Make a PDF of lines of ASCII, with an outline of headings and their pages, from 0."""
    objects: dict[int, bytes] = {}

    def add(number: int, content: str, stream: bytes | None = None) -> None:
        data = content.encode("latin-1")
        if stream is not None:
            data += b"\nstream\n" + stream + b"\nendstream"
        objects[number] = data

    first_page = 10
    first_entry = first_page + 2 * len(pages)
    kids = " ".join(f"{first_page + 2 * number} 0 R" for number in range(len(pages)))
    outlines = "/Outlines 5 0 R" if outline else ""
    add(1, f"<< /Type /Catalog /Pages 2 0 R {outlines} >>")
    add(2, f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>")
    add(3, "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    add(4, f"<< /Title ({title}) >>" if title is not None else "<< >>")
    last_entry = first_entry + len(outline) - 1
    add(5, f"<< /First {first_entry} 0 R /Last {last_entry} 0 R /Count {len(outline)} >>")
    if encrypted:
        add(
            6,
            f"<< /Filter /Standard /V 1 /R 2 /Length 40 /P -4 /O <{'41' * 32}> /U <{'42' * 32}> >>",
        )
    for number, lines in enumerate(pages):
        shown = "".join(f"({line}) Tj 0 -30 Td\n" for line in lines)
        stream = f"BT /F1 12 Tf 72 720 Td\n{shown}ET".encode("latin-1")
        add(
            first_page + 2 * number,
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792]"
            f" /Resources << /Font << /F1 3 0 R >> >> /Contents {first_page + 2 * number + 1} 0 R"
            " >>",
        )
        add(first_page + 2 * number + 1, f"<< /Length {len(stream)} >>", stream)
    for number, (heading, page) in enumerate(outline):
        following = f"/Next {first_entry + number + 1} 0 R" if number + 1 < len(outline) else ""
        add(
            first_entry + number,
            f"<< /Title ({heading}) /Parent 5 0 R {following}"
            f" /Dest [{first_page + 2 * page} 0 R /Fit] >>",
        )
    data = b"%PDF-1.4\n"
    offsets = {}
    for number in sorted(objects):
        offsets[number] = len(data)
        data += f"{number} 0 obj\n".encode() + objects[number] + b"\nendobj\n"
    start = len(data)
    data += b"xref\n0 1\n0000000000 65535 f \n"
    for number, offset in offsets.items():
        data += f"{number} 1\n{offset:010} 00000 n \n".encode()
    encryption = f"/Encrypt 6 0 R /ID [<{'43' * 16}> <{'43' * 16}>]" if encrypted else ""
    trailer = f"<< /Size {max(objects) + 1} /Root 1 0 R /Info 4 0 R {encryption} >>"
    return data + f"trailer\n{trailer}\nstartxref\n{start}\n%%EOF\n".encode()
