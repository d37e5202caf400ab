"""The gateway: how a plain SQL client reaches a model.

A server that speaks PostgreSQL's protocol, so that a database can call it through dblink. It
answers `understand`, `choose`, `embed` and `status`, and evaluates no SQL. `server` has the
server, `session` one connection of it, `calls` what is answered.
"""

from typing import Final

DEFAULT_PORT: Final = 5454
