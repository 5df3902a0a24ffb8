"""`python -m asynsched.simulation`: simulates a span in a process of its own, for a scheduler that serves."""

import asyncio

from asynsched.clock import Clock
from asynsched.simulation.folder import asker, parse_folder, questions_of_span, read_home_state
from asynsched.simulation.own_process import answer_once
from asynsched.simulation.script import Expectation, Expectations, with_certain_failures
from asynsched.simulation.span import Plan, simulate_span
from asynsched.simulation.summary import Simulated, summary
from asynsched.simulation.wanted import SpanWanted


def simulated(wanted: SpanWanted) -> Simulated:
    """Parse the DAG folder, and simulate the span. Blocks. Raises AsynschedError."""
    clock = Clock()
    last = None if wanted.seconds is None else clock.monotonic() + wanted.seconds
    settings, home = wanted.settings, read_home_state(wanted.settings.database_url)
    history = home.history if wanted.failure_rate is not None else with_certain_failures(home.history)
    plan = Plan(
        start=wanted.start,
        end=wanted.end,
        seed=wanted.seed,
        expectations=Expectations(
            given=Expectation(duration=wanted.duration, failure_rate=wanted.failure_rate), history=history
        ),
        home=home,
        pools=wanted.pools,
        unpause=wanted.unpause,
    )
    reports = asyncio.run(parse_folder(settings, questions_of_span(plan.start, plan.end)))
    goes_on = None if last is None else lambda: clock.monotonic() < last
    return summary(simulate_span(settings, reports, plan, ask=asker(settings), goes_on=goes_on), wanted.dag_id)


if __name__ == "__main__":
    answer_once(SpanWanted, simulated)
