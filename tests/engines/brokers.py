"""Real brokers of the distribution, on ports and in folders of their own."""

import os
import shutil
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

from tests.integration.remote.machines import free_port
from tests.support.missing import skip_outside_ci
from tests.support.waiting import until

RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
PASSWORD = "hunter2-broker"
CONSUMER_TIMEOUT_MS = 2000


class Broker(ABC):
    """A broker in a process that can be killed, and started again on the same folder.

    Attributes:
        program: None: the distribution's program is not installed.
    """

    name: str
    program: str | None

    def __init__(self, root: Path, host: str = "127.0.0.1") -> None:
        self.root = root
        self.host = host
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    @abstractmethod
    def url_at(self, port: int) -> str:
        """Return the URL of the broker behind another port, such as a proxy's."""

    @abstractmethod
    def command(self) -> tuple[list[str], dict[str, str]]:
        """Return the command of the broker's process, and what it needs in its environment."""

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Start what the broker needs beside its process."""

    def start(self) -> None:
        self.prepare()
        command, environment = self.command()
        with (self.root / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | environment, cwd=self.root, start_new_session=True
            )
        self.wait()

    def wait(self) -> None:
        """Wait until it answers."""
        until(self._answers, f"{self.name} answers", describe=(self.root / "broker.log").read_text)

    def stop(self) -> None:
        """Stop it gently, so that messages are kept."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        self._process.wait(60)
        self._process = None

    def _answers(self) -> bool:
        import kombu  # campaigns of faults without an engine do without it
        from kombu.exceptions import OperationalError

        with suppress(OSError, OperationalError), kombu.Connection(self.url) as connection:
            connection.ensure_connection(max_retries=1, timeout=2)
            return True
        return False

    @abstractmethod
    def empty(self) -> None:
        """Drop all messages."""


class Redis(Broker):
    name = "redis"
    program = shutil.which("redis-server")

    def url_at(self, port: int) -> str:
        return f"redis://:{PASSWORD}@{self.host}:{port}/0"

    def command(self) -> tuple[list[str], dict[str, str]]:
        assert self.program is not None
        command = [
            self.program, "--port", str(self.port), "--bind", self.host, "--dir", str(self.root),
            "--appendonly", "yes", "--requirepass", PASSWORD,
        ]  # fmt: skip
        return command, {}

    def empty(self) -> None:
        import kombu

        with kombu.Connection(self.url) as connection:
            connection.default_channel.client.flushall()


class RabbitMQ(Broker):
    name = "rabbitmq"
    program = str(RABBITMQ) if RABBITMQ.exists() else None

    def __init__(self, root: Path, host: str = "127.0.0.1") -> None:
        super().__init__(root, host)
        self._epmd_port = free_port()
        self._epmd: subprocess.Popen[bytes] | None = None

    def url_at(self, port: int) -> str:
        return f"amqp://guest:guest@{self.host}:{port}//"

    def command(self) -> tuple[list[str], dict[str, str]]:
        (self.root / "plugins").write_text("[].\n")
        # Messages that are not acknowledged in time are delivered again, as in production after 30 minutes.
        timeouts = f"{{consumer_timeout, {CONSUMER_TIMEOUT_MS}}}, {{channel_tick_interval, 1000}}"
        (self.root / "advanced.config").write_text(f"[{{rabbit, [{timeouts}, {{loopback_users, []}}]}}].\n")
        environment = {
            "HOME": str(self.root), "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": f"t{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": self.host, "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()), "RABBITMQ_MNESIA_BASE": str(self.root / "data"),
            "RABBITMQ_LOG_BASE": str(self.root), "RABBITMQ_PID_FILE": str(self.root / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.root / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.root / "none"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.root / "advanced.config"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 -setcookie tests",
            "RUNNING_UNDER_SYSTEMD": "true",  # the process is the broker itself, and no shell that waits for it
        }  # fmt: skip
        return [str(self.program)], environment

    def prepare(self) -> None:
        if self._epmd is None:
            # Else the node starts one that outlives it.
            command = ["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"]
            with (self.root / "epmd.log").open("ab") as log:
                self._epmd = subprocess.Popen(command, stdout=log, stderr=log)
            until(self._epmd_answers, "epmd answers")

    def _epmd_answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._epmd_port), 1):
            return True
        return False

    def kill(self) -> None:
        super().kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None

    def empty(self) -> None:
        import kombu

        with kombu.Connection(self.url) as connection:
            for queue in ("default", "gpu"):
                connection.channel().queue_delete(queue)


BROKERS: tuple[type[Broker], ...] = (Redis, RabbitMQ)


def require_broker(broker: type[Broker]) -> None:
    """Skip a test if a broker is not installed; in CI, it fails then."""
    if broker.program is None:
        skip_outside_ci(f"{broker.name} is not installed: apt-get install redis-server rabbitmq-server")
