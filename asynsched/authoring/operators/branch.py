"""BaseBranchOperator, a task that decides which of its downstream tasks run, and the standard branches by date."""

from __future__ import annotations

import datetime as dt

from asynsched.authoring.exceptions import DownstreamTasksSkipped
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.timezone import make_aware, utcnow
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Unpack

    from asynsched.authoring.dag import DAG
    from asynsched.authoring.keywords import TaskKeywords
    from asynsched.authoring.node import DAGNode
    from asynsched.authoring.running.context import Context
    from asynsched.authoring.running.task_instance import DagRun, TaskInstance
    from asynsched.authoring.week_day import WeekDay


class SkipMixin:
    """Lets an operator skip other tasks of its run.

    A decision holds once the task succeeds. It still holds when a task directly after it is cleared.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # The scheduler looks for the decisions of these tasks only.
        cls.is_branch = not getattr(cls, "is_short_circuit", False)  # type: ignore[attr-defined] # of the operator

    def skip(self, ti: TaskInstance, tasks: Iterable[DAGNode]) -> None:
        """Skip these tasks, which may be anywhere in the run, unless they have begun. Other nodes are ignored.

        Raises:
            DownstreamTasksSkipped: This ends `execute`. An instance of a mapped task goes on instead.
        """
        task_ids = [node.task_id for node in tasks if hasattr(node, "task_id")]
        if task_ids:
            ti.skips = tuple(task_ids)
            _end(ti, task_ids)

    def skip_all_except(self, ti: TaskInstance, branch_task_ids: str | Iterable[str] | None) -> None:
        """Skip the tasks directly after this one, except for these and the tasks downstream of them.

        Args:
            branch_task_ids: The task_ids and group_ids to run: one, several, or None.

        Raises:
            DownstreamTasksSkipped: There is a task to skip, which ends `execute`. An instance of a mapped task goes on.
            DagError: An id is neither a task's nor a task group's.
        """
        chosen: Any = branch_task_ids
        if hasattr(chosen, "__next__"):  # a generator
            chosen = list(chosen)
        task = ti.task
        ti.follow = followed_tasks(task.dag, ti.task_id, chosen)
        below = (task.dag.get_task(task_id).get_flat_relative_ids() for task_id in ti.follow)
        _end(ti, sorted(task.downstream_task_ids.difference(ti.follow, *below)))

    def cut_short(self, ti: TaskInstance, *, ignore_trigger_rules: bool) -> None:
        """Skip the tasks downstream, or only those directly after this one; by `skip`, if a subclass overrides it."""
        if type(self).skip is SkipMixin.skip:
            ti.short_circuit = ignore_trigger_rules
            return
        below = ti.task.get_flat_relatives() if ignore_trigger_rules else ti.task.get_direct_relatives()
        self.skip(ti=ti, tasks=[task for task in below if not task.is_teardown])


def _end(ti: TaskInstance, skipped: list[str]) -> None:
    if skipped and ti.map_index < 0:
        raise DownstreamTasksSkipped(tasks=skipped)


class BranchMixIn(SkipMixin):
    """Lets an operator follow branches: tasks and task groups directly after it."""

    def do_branch(
        self, context: Context, branches_to_execute: str | Iterable[str] | None
    ) -> str | Iterable[str] | None:
        """Follow only these tasks and task groups, and return them. Raises the errors of `skip_all_except`."""
        self.skip_all_except(context["ti"], branches_to_execute)
        return branches_to_execute

    def branch_into(self, context: Context, branches: Any) -> Any:
        """Call `do_branch`, which a subclass may override, and return the branches also when it skips tasks."""
        if hasattr(branches, "__next__"):  # a generator
            branches = list(branches)
        try:
            branches = self.do_branch(context, branches)
        except DownstreamTasksSkipped:
            if context["ti"].follow is None:
                raise
        return sorted(branches) if isinstance(branches, (set, frozenset)) else branches


class BaseBranchOperator(BaseOperator, BranchMixIn):
    """A task whose `choose_branch` names the downstream tasks or task groups to run; the others are skipped."""

    def choose_branch(self, context: Context) -> str | Iterable[str] | None:
        """Return the task_ids and group_ids to run: one, several, or None. Subclasses implement this."""
        raise NotImplementedError(f"{self.task_type} has no choose_branch()")

    def execute(self, context: Context) -> Any:
        return self.branch_into(context, self.choose_branch(context))


def followed_tasks(dag: DAG, task_id: str, chosen: Any) -> tuple[str, ...]:
    """Return the task_ids that a branch follows; a task group stands for its first tasks.

    Raises DagError if a choice is not a string, or is the id of neither a task nor a task group of the DAG.
    """
    names = [chosen] if isinstance(chosen, str) else [] if chosen is None else chosen
    if not hasattr(names, "__iter__") or not all(isinstance(name, str) for name in names):
        raise DagError(f"branch {task_id!r} must return a task_id, a list of them, or None, not {chosen!r}")
    groups = dag.task_group_dict
    unknown = [name for name in names if name not in dag.task_dict and name not in groups]
    if unknown:
        raise DagError(
            f"branch {task_id!r} chose {', '.join(map(repr, sorted(unknown)))}: no task and no task group of DAG"
            f" {dag.dag_id!r} has that id"
        )
    followed: dict[str, None] = {}
    for name in names:
        tasks = [dag.task_dict[name]] if name in dag.task_dict else groups[name].roots
        followed.update((task.task_id, None) for task in tasks)
    return tuple(followed)


class BranchDayOfWeekOperator(BaseBranchOperator):
    """Follows one branch on certain days of the week, and another branch on the other days.

    Args:
        follow_task_ids_if_true: The task_ids and group_ids to run on those days: one or several.
        follow_task_ids_if_false: The ones to run on the other days.
        week_day: The day or a set of days, as full names or members of WeekDay.
        use_task_logical_date: Use the run's logical date, or else its `run_after`, instead of the current day in the
            DAG's timezone.
    """

    def __init__(
        self,
        *,
        follow_task_ids_if_true: str | Iterable[str],
        follow_task_ids_if_false: str | Iterable[str],
        week_day: str | WeekDay | Iterable[str] | Iterable[WeekDay],
        use_task_logical_date: bool = False,
        **kwargs: Unpack[TaskKeywords],
    ) -> None:
        from asynsched.authoring.week_day import WeekDay

        super().__init__(**kwargs)
        self.follow_task_ids_if_true = follow_task_ids_if_true
        self.follow_task_ids_if_false = follow_task_ids_if_false
        self.week_day = week_day
        self.use_task_logical_date = use_task_logical_date
        self.week_day_numbers = WeekDay.validate_week_day(week_day)

    def choose_branch(self, context: Context) -> str | Iterable[str]:
        if self.use_task_logical_date:
            day: dt.datetime = context.get("logical_date") or context["dag_run"].run_after
        else:
            day = utcnow().astimezone(self.dag.timezone)
        if day.isoweekday() in self.week_day_numbers:
            return self.follow_task_ids_if_true
        return self.follow_task_ids_if_false


class BranchDateTimeOperator(BaseBranchOperator):
    """Follows one branch between two instants or times of day, and another branch outside of them.

    Times of day and naive datetimes are in the DAG's timezone. An upper time of day before the lower one is on the next
    day.

    Args:
        follow_task_ids_if_true: The task_ids and group_ids to run between the bounds: one or several.
        follow_task_ids_if_false: The ones to run outside.
        target_lower: The lower bound, or None.
        target_upper: The upper bound, or None.
        use_task_logical_date: Use the run's logical date instead of the current time.
    """

    def __init__(
        self,
        *,
        follow_task_ids_if_true: str | Iterable[str],
        follow_task_ids_if_false: str | Iterable[str],
        target_lower: dt.datetime | dt.time | None,
        target_upper: dt.datetime | dt.time | None,
        use_task_logical_date: bool = False,
        **kwargs: Unpack[TaskKeywords],
    ) -> None:
        super().__init__(**kwargs)
        if target_lower is None and target_upper is None:
            raise DagError(f"task {self.task_id!r}: target_lower and target_upper must not both be None")
        for name, target in (("target_lower", target_lower), ("target_upper", target_upper)):
            if not isinstance(target, (dt.datetime, dt.time, type(None))):
                raise DagError(f"task {self.task_id!r}: {name} must be a datetime or a time, not {target!r:.100}")
        self.target_lower = target_lower
        self.target_upper = target_upper
        self.follow_task_ids_if_true = follow_task_ids_if_true
        self.follow_task_ids_if_false = follow_task_ids_if_false
        self.use_task_logical_date = use_task_logical_date

    def choose_branch(self, context: Context) -> str | Iterable[str]:
        now = utcnow()
        if self.use_task_logical_date:
            now = context.get("logical_date") or context["dag_run"].run_after
        lower, upper = target_times_as_dates(now, self.target_lower, self.target_upper)
        if (upper is not None and self._aware(upper) < now) or (lower is not None and self._aware(lower) > now):
            return self.follow_task_ids_if_false
        return self.follow_task_ids_if_true

    def _aware(self, moment: dt.datetime) -> dt.datetime:
        return moment if moment.utcoffset() is not None else make_aware(moment, self.dag.timezone)


def target_times_as_dates(
    base_date: dt.datetime, lower: dt.datetime | dt.time | None, upper: dt.datetime | dt.time | None
) -> tuple[dt.datetime | None, dt.datetime | None]:
    """Return both bounds as datetimes; a time of day is on the day of `base_date`."""
    both_are_dates = isinstance(lower, dt.datetime) and isinstance(upper, dt.datetime)
    if isinstance(lower, dt.time):
        lower = dt.datetime.combine(base_date, lower)
    if isinstance(upper, dt.time):
        upper = dt.datetime.combine(base_date, upper)
    if lower is not None and upper is not None and not both_are_dates and upper < lower:
        upper += dt.timedelta(days=1)
    return lower, upper


class LatestOnlyOperator(BaseBranchOperator):
    """Skips its direct downstream tasks unless its run is the latest of the schedule.

    A run is the latest from the start of its data interval to the end of the next one. In runs of the type `manual`,
    and where the schedule has no next run, nothing is skipped.
    """

    ui_color = "#e9ffdb"

    def choose_branch(self, context: Context) -> str | Iterable[str]:
        run: DagRun = context["dag_run"]
        everything = sorted(self.downstream_task_ids)
        if run.run_type == "manual":
            self.log.info("A person requested the run: nothing is skipped.")
            return everything
        now = utcnow()
        window = self._window(run, now)
        if window is None:
            self.log.info("The schedule has no later run: nothing is skipped.")
            return everything
        left, right = window
        is_latest = left < now <= right
        self.log.info("This run is the latest from %s to %s; it is now %s.", left, right, now)
        return everything if is_latest else []

    def _window(self, run: DagRun, now: dt.datetime) -> tuple[dt.datetime, dt.datetime] | None:
        """Return the times between which the run is the latest; None if it remains the latest."""
        from asynsched.timetables import DataInterval, TimeRestriction
        from asynsched.timetables.base import asked_at

        date = run.logical_date or run.run_after
        interval = DataInterval(_plain(run.data_interval_start or date), _plain(run.data_interval_end or date))
        before_end = TimeRestriction(None, interval.end - dt.timedelta(microseconds=1), catchup=True)
        after = TimeRestriction(interval.end, None, catchup=True)
        timetable = self.dag.timetable
        with asked_at(now):
            within = timetable.next_dagrun_info(last_automated_data_interval=interval, restriction=before_end)
            following = timetable.next_dagrun_info(last_automated_data_interval=interval, restriction=after)
        left = interval.start if within is None else within.data_interval.end
        return None if following is None else (left, following.data_interval.end)


def _plain(moment: dt.datetime) -> dt.datetime:
    """Return an instant as the scheduler passes it to timetables: a plain datetime in UTC."""
    return dt.datetime.fromtimestamp(moment.timestamp(), dt.UTC).replace(microsecond=moment.microsecond)
