"""ResumableJobMixin: operators that find a job in another system again instead of starting a second one."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod

from asynsched.authoring.operators.arguments import apply_defaults

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from typing import Any

    from asynsched.authoring.running.context import Context


class ResumableJobMixin(metaclass=ABCMeta):
    """For operators that start a job elsewhere and wait for it: a later try goes on with the job of an earlier one.

    The id of the job is kept in the state store of the task. `execute` returns `self.execute_resumable(context)`. A
    process that dies between the start of the job and the storing of its id leaves a job that no try finds.

    Args:
        durable: Whether to keep the id; otherwise each try starts a job.

    Attributes:
        external_id_key: The key of the id in the state store.

    Source: Apache Airflow's `airflow.sdk.bases.resumablejobmixin`.
    """

    external_id_key: str = "remote_job_id"
    log: logging.Logger

    @apply_defaults
    def __init__(self, *, durable: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.durable = durable

    def execute_resumable(self, context: Context) -> Any:
        """Return the result of the job. Start one unless that of an earlier try is active or has succeeded."""
        store = context.get("task_state_store") if self.durable else None
        external_id = None if store is None else store.get(self.external_id_key)
        if external_id:
            status = self.get_job_status(external_id, context)
            if self.is_job_active(status):
                self.log.info("Waiting for job %s of an earlier try, which is %s", external_id, status)
                self.poll_until_complete(external_id, context)
                return self.get_job_result(external_id, context)
            if self.is_job_succeeded(status):
                self.log.info("Job %s of an earlier try has succeeded", external_id)
                return self.get_job_result(external_id, context)
            self.log.warning("Job %s of an earlier try is %s: starting another", external_id, status)
        external_id = self.submit_job(context)
        if store is not None and external_id is not None:
            store.set(self.external_id_key, external_id)
        self.poll_until_complete(external_id, context)
        return self.get_job_result(external_id, context)

    @abstractmethod
    def submit_job(self, context: Context) -> Any:
        """Start the job, and return its id: JSON. The id None is not kept."""

    @abstractmethod
    def get_job_status(self, external_id: Any, context: Context) -> str:
        """Return the status of a job, as the other system names it."""

    @abstractmethod
    def is_job_active(self, status: str) -> bool:
        """Return whether a job of this status will still end."""

    @abstractmethod
    def is_job_succeeded(self, status: str) -> bool:
        """Return whether a job of this status has succeeded."""

    @abstractmethod
    def poll_until_complete(self, external_id: Any, context: Context) -> None:
        """Wait until a job has ended. Raise an exception if it failed."""

    @abstractmethod
    def get_job_result(self, external_id: Any, context: Context) -> Any:
        """Return the result of a job that has succeeded."""
