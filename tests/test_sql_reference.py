"""sql/README.md says what the database says, and its examples run."""

import re
from typing import Any

import psycopg
import pytest
import sql_reference

EXAMPLES = re.findall(r"^```sql\n(.*?)^```$", sql_reference.INTRODUCTION, re.DOTALL | re.MULTILINE)


def test_reference_is_current(postgresql: psycopg.Connection[Any]) -> None:
    present = sql_reference.TARGET.read_text().splitlines()
    assert present == sql_reference.render(postgresql).splitlines(), (
        f"sql/README.md is not what the comments in sql/ and migrations/ make; "
        f"run: {sql_reference.COMMAND}"
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.partition("\n")[0])
def test_example_runs(postgresql: psycopg.Connection[Any], example: str) -> None:
    postgresql.execute(example.encode())
