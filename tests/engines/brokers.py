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

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def _command(self) -> tuple[list[str], dict[str, str]]: ...

    def start(self) -> None:
        command, environment = self._command()
        with (self.root / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | environment, cwd=self.root, start_new_session=True
            )
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

    @property
    def url(self) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def _command(self) -> tuple[list[str], dict[str, str]]:
        assert self.program is not None
        command = [
            self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.root),
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

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._epmd_port = free_port()
        self._epmd: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def _command(self) -> tuple[list[str], dict[str, str]]:
        (self.root / "plugins").write_text("[].\n")
        # Messages that are not acknowledged in time are delivered again, as in production after 30 minutes.
        timeouts = f"{{consumer_timeout, {CONSUMER_TIMEOUT_MS}}}, {{channel_tick_interval, 1000}}"
        (self.root / "advanced.config").write_text(f"[{{rabbit, [{timeouts}]}}].\n")
        environment = {
            "HOME": str(self.root), "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": f"t{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()), "RABBITMQ_MNESIA_BASE": str(self.root / "data"),
            "RABBITMQ_LOG_BASE": str(self.root), "RABBITMQ_PID_FILE": str(self.root / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.root / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.root / "none"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.root / "advanced.config"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 -setcookie tests",
        }  # fmt: skip
        if self._epmd is None:
            # Else the node starts one that outlives it.
            self._epmd = subprocess.Popen(["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"])
            until(self._epmd_answers, "epmd answers")
        return [str(self.program)], environment

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
