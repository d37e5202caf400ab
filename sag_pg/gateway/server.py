"""The gateway as a whole: it listens, counts its sessions, and ends in good order."""

import asyncio
import contextlib
import errno
import hmac
import itertools
import os
import signal
import socket
from pathlib import Path
from typing import Any, Final

from sag_pg.errors import ConfigurationError
from sag_pg.gateway import log
from sag_pg.gateway.calls import Calls, Models
from sag_pg.gateway.limits import Limits
from sag_pg.gateway.listening import Listening, keep_alive, raise_descriptor_limit
from sag_pg.gateway.refusal import RefusedError, SqlState
from sag_pg.gateway.secret import PasswordReader, Secret
from sag_pg.gateway.session import Service, Session
from sag_pg.models.budget import Usage

_BACKLOG: Final = 1024
_FIRST_NUMBER: Final = 1
_LAST_NUMBER: Final = 2**31 - 1


class GatewayServer:
    """A server of the gateway's calls.

    Args:
        models: What answers.
        read_password: Reads the password that clients have to know.
        listening: Where to listen.
        limits: What bounds the work.
        usage: What the models' endpoints are asked, for `status`.
    """

    def __init__(
        self,
        models: Models,
        read_password: PasswordReader,
        listening: Listening | None = None,
        limits: Limits | None = None,
        usage: Usage | None = None,
    ) -> None:
        self._listening = listening or Listening()
        self._limits = limits or Limits()
        self._service = Service(
            calls=Calls(models, self._limits, usage or Usage(), lambda: len(self._admitted)),
            secret=Secret(read_password),
            limits=self._limits,
            registry=self,
            tls=self._listening.tls,
        )
        self._numbers = itertools.cycle(range(_FIRST_NUMBER, _LAST_NUMBER))
        self._servers: list[asyncio.Server] = []
        self._socket_path: Path | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # Both in order of arrival; those that have not logged in, and those that have.
        self._pending: dict[int, Session] = {}
        self._admitted: dict[int, Session] = {}
        self._crowded_out = 0
        self._is_ending = False

    @property
    def port(self) -> int | None:
        """The TCP port, of which 0 may have been asked for; None without TCP."""
        addresses = [bound.getsockname() for server in self._servers for bound in server.sockets]
        return next((int(address[1]) for address in addresses if isinstance(address, tuple)), None)

    @property
    def addresses(self) -> list[str]:
        """Where it listens: `host:port`, or the path of a Unix socket."""
        return [_shown(bound.getsockname()) for server in self._servers for bound in server.sockets]

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            ConfigurationError: It cannot listen there, or not safely.
        """
        self._listening.check()
        raise_descriptor_limit()
        host, port, path = (
            self._listening.host,
            self._listening.port,
            self._listening.socket_path,
        )
        try:
            if host is not None:
                self._servers.append(
                    await asyncio.start_server(self._connected, host, port, backlog=_BACKLOG)
                )
            if path is not None:
                self._servers.append(
                    await asyncio.start_unix_server(self._connected, path, backlog=_BACKLOG)
                )
                self._socket_path = path
                # As PostgreSQL's own: the database's server is another user of the system. The
                # password keeps the others out.
                path.chmod(0o777)
        except OSError as error:
            self._stop_listening()
            hints = {
                errno.EADDRINUSE: "Another server is there already: stop it, or choose another"
                " --port and tell the database by sag-pg gateway install --port.",
                errno.EADDRNOTAVAIL: "No interface of this machine has this address.",
                errno.EACCES: "This user has no right to that port or directory.",
            }
            # asyncio puts its own words around the system's; the resolver has its own numbers.
            is_unknown = isinstance(error, socket.gaierror)
            reason = error.strerror if is_unknown else os.strerror(error.errno or 0)
            raise ConfigurationError(
                f"Cannot listen at {self._listening}: {reason}.",
                hints.get(error.errno or 0, "See --host, --port and --socket-dir."),
            ) from error

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then end: running calls come to their end in time.

        A second signal ends them too.

        Raises:
            ConfigurationError: It cannot listen there, or not safely.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_log_loop_error)
        signals: asyncio.Queue[None] = asyncio.Queue()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signals.put_nowait, None)
        await self.start()
        log.info("ready", message=f"listening on {', '.join(self.addresses)}")
        await signals.get()
        log.info("stopping", running=sum(s.is_busy for s in self._admitted.values()))
        stopping = asyncio.create_task(self.stop())
        impatience = asyncio.create_task(signals.get())
        await asyncio.wait([stopping, impatience], return_when=asyncio.FIRST_COMPLETED)
        impatience.cancel()
        if not stopping.done():
            await self.stop(grace_seconds=0)
        await stopping
        log.info("stopped")

    async def stop(self, grace_seconds: float | None = None) -> None:
        """Listen no more, let running calls come to their end, and end all sessions.

        Args:
            grace_seconds: Time for the calls; None for what the limits say.
        """
        self._is_ending = True
        self._stop_listening()
        for session in list(self._pending.values()):
            session.abort()
        grace = self._limits.grace_seconds if grace_seconds is None else grace_seconds
        for seconds, now in ((grace, False), (1.0, True)):
            for session in list(self._admitted.values()):
                session.end(now=now)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def admit(self, session: Session) -> None:
        """Count a session that has logged in.

        Raises:
            RefusedError: There are too many, or the server is shutting down.
        """
        if self._is_ending:
            raise RefusedError(
                SqlState.ADMIN_SHUTDOWN,
                "the gateway is shutting down",
                "Try again when it has been started again.",
            )
        if len(self._admitted) >= self._limits.max_connections:
            raise RefusedError(
                SqlState.TOO_MANY,
                f"the gateway has its {self._limits.max_connections} connections already",
                "Each database session that uses models keeps one. Start the gateway with a"
                " higher --max-connections.",
            )
        self._pending.pop(session.number, None)
        self._admitted[session.number] = session

    def cancel(self, process_id: int, key: bytes) -> None:
        """End the call of the session that has this key, if there is one."""
        session = self._admitted.get(process_id)
        if session is not None and session.key and hmac.compare_digest(session.key, key):
            session.cancel_call()

    def release(self, session: Session) -> None:
        """Count a session no more, of which nothing but the end of its connection is to come."""
        self._pending.pop(session.number, None)
        self._admitted.pop(session.number, None)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_ending:
            writer.transport.abort()
            return
        keep_alive(writer.get_extra_info("socket"))
        session = Session(
            number=next(self._numbers),
            reader=reader,
            writer=writer,
            service=self._service,
            needs_tls=self._listening.needs_tls(writer.get_extra_info("peername")),
        )
        # Whoever means it logs in within moments. So those that have waited longest go first, and
        # no crowd of silent clients keeps the others out.
        if len(self._pending) >= self._limits.max_connections:
            oldest = next(iter(self._pending))
            self._pending.pop(oldest).abort()
            if self._crowded_out == 0:
                # One line for all of a second, or the log would be the crowd's.
                asyncio.get_running_loop().call_later(1, self._log_crowd)
            self._crowded_out += 1
        self._pending[session.number] = session
        task = asyncio.create_task(session.run())
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._left(session, task))

    def _log_crowd(self) -> None:
        log.warning("crowded_out", connections=self._crowded_out)
        self._crowded_out = 0

    def _left(self, session: Session, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        # A task that was cancelled before it began has not done so itself.
        self.release(session)
        if not task.cancelled() and task.exception() is not None:
            log.fault("internal_error", task.exception(), connection=session.number)

    def _stop_listening(self) -> None:
        for server in self._servers:
            server.close()
        if self._socket_path is not None:
            with contextlib.suppress(OSError):
                self._socket_path.unlink()
        # The sockets are closed already; asyncio would wait for the sessions too.
        self._servers.clear()


def _shown(address: Any) -> str:
    if not isinstance(address, tuple):
        return str(address)
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What asyncio itself has to say. Its text is its own, that of the exception may not be."""
    log.fault("loop_error", context.get("exception"), message=context.get("message"))
