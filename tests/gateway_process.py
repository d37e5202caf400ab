"""`sag-pg serve` in a process of its own, which can be frozen, killed and started again."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from model_server import CHAT_MODEL, ModelServer


class GatewayProcess:
    """`sag-pg serve`, on a port that stays the same when it is started again."""

    def __init__(
        self,
        database_url: str,
        log: Path,
        models: ModelServer | None = None,
        *,
        embedding: str = "local",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self.log = log
        self._command = [
            *(sys.executable, "-m", "sag_pg"),
            *("serve", "--embedding", embedding, "--port", str(self.port)),
        ]
        self._environment = {**os.environ, "SAG_PG_DATABASE_URL": database_url}
        if models is not None:
            self._environment |= {
                "SAG_PG_BASE_URL": models.url,
                "SAG_PG_CHAT_MODEL": CHAT_MODEL,
                "SAG_PG_MODEL_RETRIES": "0",
            }
        self._environment |= environment or {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(self._command, env=self._environment, stderr=log)
        until = time.monotonic() + 60
        while b'"ready"' not in self.log.read_bytes():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, "it does not get ready"
            time.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.send(number)
        assert self._process is not None
        self._process.wait(timeout=30)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.send(signal.SIGCONT)
