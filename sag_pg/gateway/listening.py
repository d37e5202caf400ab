"""Where the gateway listens, and that nobody can listen in."""

import contextlib
import ipaddress
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sag_pg.errors import ConfigurationError
from sag_pg.gateway import DEFAULT_PORT
from sag_pg.gateway.scram import can_bind
from sag_pg.gateway.session import Tls

# macOS allows 104 bytes for the path of a socket, the terminating NUL included; Linux 108.
_SOCKET_PATH_LIMIT: Final = 103

# Quiet peers that are gone, such as a database whose machine lost power, are found out in two
# minutes.
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}


@dataclass(frozen=True, slots=True)
class Listening:
    """Where to listen.

    Attributes:
        host: Name or address; None for no TCP.
        port: TCP port, also in the name of the Unix socket; 0 for any free one.
        socket_dir: Directory of the Unix socket; None for none.
        tls: Encryption; None for none.
        is_insecure: Whether other machines may connect without encryption.
    """

    host: str | None = "127.0.0.1"
    port: int = DEFAULT_PORT
    socket_dir: Path | None = None
    tls: Tls | None = None
    is_insecure: bool = False

    def __str__(self) -> str:
        places = [f"{self.host}, port {self.port}"] if self.host is not None else []
        return " and ".join([*places, *([str(self.socket_path)] if self.socket_path else [])])

    @property
    def socket_path(self) -> Path | None:
        """The Unix socket, named as libpq looks for it; None for none."""
        return self.socket_dir / f".s.PGSQL.{self.port}" if self.socket_dir is not None else None

    def check(self) -> None:
        """Make sure that it can be listened there, and safely.

        Raises:
            ConfigurationError: There is nowhere to listen, another server is there already, or
                other machines could connect without encryption.
        """
        if self.host is None and self.socket_dir is None:
            raise ConfigurationError("There is nowhere to listen.", "Give --host or --socket-dir.")
        if self.host is not None and self.tls is None and not self.is_insecure:
            self._check_loopback(self.host)
        if self.socket_path is not None:
            _check_socket(self.socket_path)

    def needs_tls(self, peer: object) -> bool:
        """Whether a client has to encrypt.

        Args:
            peer: The address as the socket gives it; of Unix sockets it is no tuple.
        """
        return (
            not self.is_insecure
            and isinstance(peer, tuple)
            and not ipaddress.ip_address(str(peer[0]).partition("%")[0]).is_loopback
        )

    def _check_loopback(self, host: str) -> None:
        try:
            found = socket.getaddrinfo(host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConfigurationError(f"The host {host} is unknown: {error}") from error
        for *_, address in found:
            if not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
                raise ConfigurationError(
                    f"Other machines could reach {host}, and read questions and answers on their"
                    " way.",
                    "Give --tls-cert and --tls-key. With --insecure, take care yourself that"
                    " nobody can listen in.",
                )


def load_tls(certificate: Path, key: Path) -> Tls:
    """Read the server's certificate, with those between it and the root, and its key.

    Raises:
        ConfigurationError: They cannot be read or do not fit together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password, lest OpenSSL asks for one on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
        text = certificate.read_text(encoding="ascii", errors="ignore")
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"The certificate {certificate} and the key {key} cannot be used:"
            f" {error.strerror or type(error).__name__}.",
            "Give files in PEM format that belong together; the key without a passphrase.",
        ) from None
    return Tls(context, text if can_bind(text) else None)


def keep_alive(connection: socket.socket) -> None:
    """Let the system notice when the peer of a TCP connection is gone."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # macOS refuses where the peer has left already.
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            # Not every system has all of them.
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def raise_descriptor_limit() -> None:
    """Allow this process as many open files as it may allow itself: each connection is one."""
    if os.name == "posix":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        # macOS says that there is no limit and refuses more than this.
        wanted = 10_240 if hard == resource.RLIM_INFINITY else hard
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _check_socket(path: Path) -> None:
    if len(os.fsencode(path)) > _SOCKET_PATH_LIMIT:
        raise ConfigurationError(
            f"The path {path} is too long for a Unix socket.", "Choose another --socket-dir."
        )
    if not path.parent.is_dir():
        raise ConfigurationError(f"There is no directory {path.parent}.", "Make it first.")
    if path.exists() and not path.is_socket():
        raise ConfigurationError(f"{path} is there already, and is no socket.", "Remove it.")
    # What a killed server left behind is replaced; what answers is not.
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return
    raise ConfigurationError(
        f"Another server listens at {path} already.", "Stop it, or choose another --port."
    )
