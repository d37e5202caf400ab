"""Ask the gateway for a sign of life, as pg_isready does; leave with 1 where there is none.

No password is needed: that the server asks for one is the sign.
"""

import os
import sys

from psycopg import conninfo, pq

address = conninfo.make_conninfo(
    "",
    # In the order of entrypoint.sh: with a host it serves TLS on all addresses.
    host="127.0.0.1"
    if os.environ.get("SAG_PG_GATEWAY_HOST")
    else os.environ["SAG_PG_GATEWAY_SOCKET_DIR"],
    port=os.environ.get("SAG_PG_GATEWAY_PORT", "5454"),
    user="sag_gateway",
    # Whatever password the environment holds is the database's and not for the gateway.
    require_auth="none",
    connect_timeout=5,
)
sys.exit(pq.PGconn.ping(address.encode()) != pq.Ping.OK)
