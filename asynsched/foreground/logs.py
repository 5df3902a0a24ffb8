"""Where the logs of a run in the foreground go."""

import logging


class LogsOnTerminal:
    """Shows the logs of tasks on standard error, unless the program around has set up logging itself."""

    def __enter__(self) -> None:
        self._handler: logging.Handler | None = None
        self._logger = logging.getLogger("asynsched")
        self._level = self._logger.level
        if not self._logger.hasHandlers():
            self._handler = logging.StreamHandler()
            self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
            self._logger.addHandler(self._handler)
            self._logger.setLevel(logging.INFO)

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            self._logger.removeHandler(self._handler)
            self._logger.setLevel(self._level)
