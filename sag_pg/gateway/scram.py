"""Authentication by SCRAM-SHA-256 (RFC 7677), on top of scramp."""

import secrets
from dataclasses import dataclass, field
from typing import Any, Final

import scramp  # type: ignore[import-untyped]

# scramp reads certificates with it, and brings it along.
from asn1crypto import pem  # type: ignore[import-untyped]
from asn1crypto.x509 import Certificate  # type: ignore[import-untyped]

MECHANISM: Final = "SCRAM-SHA-256"
MECHANISM_WITH_BINDING: Final = "SCRAM-SHA-256-PLUS"

# libpq leaves the user's name empty, because the startup message has it; scramp wants one.
_FILLER: Final = "x"


@dataclass(frozen=True, slots=True)
class Keys:
    """What the server has to know of a password: not enough to log in with it.

    Attributes:
        salt: Random bytes.
        stored_key: Proves the client's knowledge.
        server_key: Proves the server's.
        iterations: Of the key derivation.
    """

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


class AuthenticationFailedError(Exception):
    """The client did not prove that it knows the password. Says nothing of why."""


def derive_keys(password: str) -> Keys:
    """Derive the keys of a password, which takes some milliseconds on purpose."""
    salt, stored_key, server_key, iterations = scramp.ScramMechanism(MECHANISM).make_auth_info(
        password
    )
    return Keys(salt, stored_key, server_key, iterations)


def unknown_keys() -> Keys:
    """Make keys that no password fits, for a user that does not exist."""
    return Keys(secrets.token_bytes(16), secrets.token_bytes(32), secrets.token_bytes(32), 4096)


def can_bind(certificate: str) -> bool:
    """Whether channel binding is defined for the first certificate in a PEM file.

    It is not for EdDSA, whose signatures name no hash function: scramp would take the one inside
    of it, and libpq ends the connection where binding is offered.
    """
    try:
        _make_server(MECHANISM_WITH_BINDING, unknown_keys(), certificate)
        _, _, der = next(
            part
            for part in pem.unarmor(certificate.encode(), multiple=True)
            if part[0] == "CERTIFICATE"
        )
        algorithm = Certificate.load(der)["signature_algorithm"].signature_algo
    except (scramp.ScramException, ValueError):
        return False
    return algorithm not in ("ed25519", "ed448")


class Exchange:
    """One client's authentication: two messages from it, two answers.

    Args:
        mechanism: The one that the client chose.
        keys: The user's.
        certificate: The server's, as PEM, where both mechanisms were offered; else None.

    Raises:
        AuthenticationFailedError: The mechanism was not offered.
    """

    def __init__(self, mechanism: str, keys: Keys, certificate: str | None) -> None:
        offered = (MECHANISM,) if certificate is None else (MECHANISM, MECHANISM_WITH_BINDING)
        if mechanism not in offered:
            raise AuthenticationFailedError
        self._server = _make_server(mechanism, keys, certificate)

    def first(self, data: bytes) -> bytes:
        """Answer the client's first message.

        Raises:
            AuthenticationFailedError: It is malformed.
        """
        try:
            message = data.decode("ascii")
            flag, identity, bare = message.split(",", 2)
            named = bare.replace("n=,", f"n={_FILLER},", 1) if bare.startswith("n=,") else bare
            self._server.set_client_first(f"{flag},{identity},{named}")
            # The signatures are over what the client sent.
            self._server.client_first_bare = bare
            return str(self._server.get_server_first()).encode()
        except (scramp.ScramException, ValueError):
            raise AuthenticationFailedError from None

    def final(self, data: bytes) -> bytes:
        """Check the client's proof, and return the server's.

        Raises:
            AuthenticationFailedError: The password is another one, or the message is malformed.
        """
        try:
            self._server.set_client_final(data.decode("ascii"))
            return str(self._server.get_server_final()).encode()
        except (scramp.ScramException, ValueError):
            raise AuthenticationFailedError from None


def _make_server(mechanism: str, keys: Keys, certificate: str | None) -> Any:
    binding = None if certificate is None else ("tls-server-end-point", certificate)
    known = (keys.salt, keys.stored_key, keys.server_key, keys.iterations)
    return scramp.ScramMechanism(mechanism).make_server(lambda user: known, channel_binding=binding)
