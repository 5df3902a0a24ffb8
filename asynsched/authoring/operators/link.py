"""BaseOperatorLink: the address of a task's work in another system."""

from __future__ import annotations

from abc import ABC, abstractmethod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.running.task_instance import TaskInstance


class BaseOperatorLink(ABC):
    """An entry of an operator's `operator_extra_links`.

    After each try its address is logged, and pushed as an XCom; `asynsched tasks links` lists the addresses.
    """

    operators: ClassVar[list[Any]] = []

    @property
    @abstractmethod
    def name(self) -> str:
        """The link's name for people."""

    @property
    def xcom_key(self) -> str:
        """The key of the XCom that the address is pushed under."""
        return f"_link_{type(self).__name__}"

    @abstractmethod
    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstance) -> str:
        """Return the address for a try; empty if there is none."""
