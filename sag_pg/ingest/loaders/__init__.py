"""Finds documents in files, directories and standard input.

Texts are read in pieces, files are found one directory at a time. Held whole are a line of a
.jsonl file or a row of a .csv file, and, in a process of its own, a file that has to be converted.
What cannot be loaded is reported beside what can.
"""

from sag_pg.ingest.loaders.paths import (
    STDIN,
    SUPPORTED_SUFFIXES,
    list_sources,
    load_paths,
    measure_paths,
)

__all__ = ["STDIN", "SUPPORTED_SUFFIXES", "list_sources", "load_paths", "measure_paths"]
