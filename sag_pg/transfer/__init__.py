"""A collection as a set of files: out of one database, and into another without any model.

A set is a directory of UTF-8 files. Each but the manifest has one JSON object a line:

- `manifest.json`: the format's version; the collection's name, text search configuration and
  parameters; the model and length of its vectors; the types of its entities; and of each file
  beside it the number of lines and the SHA-256.
- `documents.jsonl`, by source.
- `chunks.jsonl`, by source and ordinal, with vectors as arrays of numbers.
- `events.jsonl`, the one event of each chunk, in the same order.
- `links.jsonl`, which event carries which entity, in the order of the events, with the aliases that
  the event gave the entity.
- `entities.jsonl`, by normalised name, with their vectors and with the aliases of persons.
- `answers.jsonl`, what language models answered, by key.

The order is by code points, so that a set is read as a stream, document by document. There are no
keys of the database and no times in it: two sets of the same content are the same bytes, wherever
they come from.
"""

from sag_pg.transfer.exporting import Exported, export_collection
from sag_pg.transfer.importing import Imported, import_collection

__all__ = ["Exported", "Imported", "export_collection", "import_collection"]
