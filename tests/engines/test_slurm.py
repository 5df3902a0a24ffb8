"""What Slurm does with jobs holds for tries, and what it does not promise is made good."""

from collections.abc import Iterator, Mapping

import pytest
from sqlalchemy import select

from asynsched.cli.configuration import load_configuration
from asynsched.errors import SettingsError
from asynsched.keys import TaskInstanceKey
from asynsched.store.schema import ticket
from tests.engines.slurm_site import ACCOUNTING_PROGRAMS, PROGRAMS, SlurmSite, missing
from tests.integration.remote.dags import DAGS
from tests.integration.remote.machines import ROOT, SHORT_LEASE
from tests.integration.remote.test_contract import (
    test_a_try_is_ended_for_a_user_and_runs_again_after_that,
    test_callbacks_run_where_a_setting_says,
    test_many_tries_end_once_each,
    test_tasks_defer_reach_time_limits_update_assets_and_keep_large_values,
    test_tasks_run_once_with_their_version_of_the_code_and_leave_whole_masked_logs,
)
from tests.support.missing import skip_outside_ci
from tests.support.waiting import DEADLINE_SECONDS, eventually, eventually_true

__all__ = [
    "test_a_try_is_ended_for_a_user_and_runs_again_after_that",
    "test_callbacks_run_where_a_setting_says",
    "test_many_tries_end_once_each",
    "test_tasks_defer_reach_time_limits_update_assets_and_keep_large_values",
    "test_tasks_run_once_with_their_version_of_the_code_and_leave_whole_masked_logs",
]


def require(programs: Mapping[str, str]) -> None:
    """Skip a test if a program is not installed; in CI, it fails then."""
    for name in missing(programs):
        skip_outside_ci(f"{name} is not installed: apt-get install {programs[name]}")


@pytest.fixture
def site(tmp_path, monkeypatch) -> Iterator[SlurmSite]:
    require(PROGRAMS)
    site = SlurmSite(tmp_path, monkeypatch)
    site.start_slurm()
    yield site
    site.close()


@pytest.fixture
def accounted_site(tmp_path, monkeypatch) -> Iterator[SlurmSite]:
    """A site whose cluster has accounting, and a controller that forgets jobs soon after their end."""
    require(PROGRAMS | ACCOUNTING_PROGRAMS)
    site = SlurmSite(tmp_path, monkeypatch)
    site.has_accounting = True
    site.configure(min_job_age=2)
    site.start_slurm()
    yield site
    site.close()


WISHES = """
    from asynsched import DAG, task

    with DAG("wishes"):

        @task(queue="closed")
        def by_queue():
            pass

        @task(executor_config={"mem": "500M", "cpus_per_task": 2, "exclusive": True})
        def by_options():
            pass

        @task(executor_config={"wra": "rm -r /"})
        def forbidden():
            pass

        @task(queue="gpus")
        def unknown():
            pass

        by_queue(), by_options(), forbidden(), unknown()
"""


async def test_wishes_are_options_of_sbatch_and_why_says_what_slurm_says(site: SlurmSite):
    site.program.write(WISHES)
    site.machine()
    async with site.serving() as scheduler:
        key = await scheduler.trigger("wishes")
        client = scheduler.client()
        await eventually_true(scheduler._database, has_sight("Slurm: PD (PartitionDown) in the partition closed"))
        assert "Slurm: PD (PartitionDown)" in str(await client.why(*key, "by_queue"))
        site.slurm_says("scontrol", "update", "PartitionName=closed", "State=UP")
        run = await site.end_of(scheduler, key)
    tasks = {task.task_id: (task.state, task.reason) for task in run.tasks}
    assert tasks["by_queue"][0] == tasks["by_options"][0] == "success"
    assert tasks["forbidden"][0] == tasks["unknown"][0] == "failed"
    assert "cannot have 'wra'" in tasks["forbidden"][1]
    assert "Slurm does not take it: Batch job submission failed: Invalid partition" in tasks["unknown"][1]


def has_sight(text: str):
    """Return a query that says whether Slurm has said this of a job."""
    return lambda conn: any(text in sight for sight in conn.scalars(select(ticket.c.sight)))


async def test_a_fan_out_is_one_array_that_waits_for_a_node_and_survives_its_scheduler(site: SlurmSite):
    site.program.write(DAGS)
    async with site.serving() as scheduler:
        key = await scheduler.trigger("counts")
        await eventually_true(scheduler._database, has_sight("Slurm: PD"))
    shown = site.slurm_says("squeue", "--noheader", "--format=%A %j")
    assert shown.splitlines() == [f"{shown.split()[0]} counts.count"]
    assert "addresses" not in site.slurm_says("scontrol", "show", "job"), "tickets are secrets"
    site.machine()
    async with site.serving("home", 1) as scheduler:
        run = await site.end_of(scheduler, key, seconds=3 * DEADLINE_SECONDS)  # 20 jobs, each with a worker of its own
    assert run.state == "success"
    assert sorted(site.said()) == sorted(f"count {n}" for n in range(20))
    await eventually(lambda: not site.homes(), "jobs remove the homes of their workers")


async def test_jobs_are_submitted_once_slurms_controller_answers_again(site: SlurmSite):
    site.program.write(DAGS)
    site.machine()
    async with site.serving() as scheduler:
        site.kill_controller()
        key = await scheduler.trigger("waits")
        await eventually_true(scheduler._database, lambda conn: conn.scalar(select(ticket.c.state)) is not None)
        site.start_controller()
        await site.until_said("begins 1")
        site.kill_controller()
        site.let_go()
        run = await site.end_of(scheduler, key)
    assert run.state == "success"
    assert site.said() == ["begins 1", "ends 1"]


async def test_a_job_that_is_preempted_ends_its_try_which_runs_again(site: SlurmSite):
    site.program.write(DAGS)
    site.slurm = {"options": ("--exclusive", f"--output={site.root}/said-%A_%a")}
    site.machine()
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
        site.slurm_says("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--chdir=/", "--wrap=true")
        await site.until_said("begins 1", "begins 1")
        site.let_go()
        run = await site.end_of(scheduler, key)
    assert run.state == "success"
    assert site.said()[-1] == "ends 1", "the try that was interrupted does not count"


async def test_a_job_that_is_cancelled_before_its_worker_has_begun_is_submitted_again(site: SlurmSite):
    site.program.write(DAGS)
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        await eventually_true(scheduler._database, has_sight("Slurm: PD"))
        site.slurm_says("scancel", "--name=waits.waits")
        await eventually(lambda: "waits.waits" in site.slurm_says("squeue", "-h", "-o", "%j"), "the next job waits")
        site.machine()
        site.let_go()
        run = await site.end_of(scheduler, key)
    assert run.state == "success"
    assert run.tasks[0].try_number == 2


async def test_a_try_whose_node_is_gone_runs_again_on_another(site: SlurmSite):
    site.program.write(DAGS)
    site.lease = SHORT_LEASE
    site.configure(timeout=5)
    site.kill_controller()
    site.start_controller()
    lost = site.machine("n1")
    async with site.serving() as scheduler, scheduler.client() as client:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
        lost.kill_worker()
        site.switch_jobs_off()
        site.machine("n2")
        site.let_go()
        run = await site.end_of(scheduler, key)
        first = (await client.list_tries(TaskInstanceKey(*key, "waits"))).tries[0]
    assert run.state == "success"
    assert site.said()[-1] == "ends 2"
    assert "its worker has not renewed its lease for" in first.reason
    assert "n2" in site.slurm_says("squeue", "--noheader", "--states=all", "--format=%N")


async def test_a_try_that_reaches_the_time_limit_of_its_job_has_failed(site: SlurmSite):
    site.program.write(DAGS)
    site.setup += "\nexport SLURM_JOB_END_TIME=$(($(date +%s) + 30))"  # as newer versions of Slurm set it
    site.machine()
    async with site.serving() as scheduler, scheduler.client() as client:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1", "begins 2")
        site.let_go()
        run = await site.end_of(scheduler, key)
        first = (await client.list_tries(TaskInstanceKey(*key, "waits"))).tries[0]
    assert run.state == "success"
    assert first.reason == "it has reached the time limit of its job"


async def reason_of_a_lost_try(site: SlurmSite) -> str:
    """Run a task whose first job fails after its try has begun, and return why that try ended."""
    site.program.write(DAGS)
    site.machine()
    async with site.serving() as scheduler, scheduler.client() as client:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
        site.switch_jobs_off()
        site.let_go()
        await site.end_of(scheduler, key)
        return (await client.list_tries(TaskInstanceKey(*key, "waits"))).tries[0].reason


async def test_the_reason_of_a_lost_try_has_the_end_of_its_job(site: SlurmSite):
    site.lease = SHORT_LEASE
    assert "Slurm: FAILED (NonZeroExitCode) on n1" in await reason_of_a_lost_try(site)


async def test_the_accounting_knows_the_end_of_a_job_that_the_controller_has_forgotten(accounted_site: SlurmSite):
    accounted_site.lease = 15.0  # longer than the controller remembers the job
    reason = await reason_of_a_lost_try(accounted_site)
    assert "its worker has not renewed its lease for" in reason
    assert ": Slurm's accounting: FAILED, exit code " in reason
    assert "on n1" in reason


async def test_the_dag_of_the_example_runs_and_its_settings_are_those_of_asynsched(site: SlurmSite):
    example = ROOT / "examples" / "slurm"
    settings = load_configuration({}, {}, example).settings
    assert settings.workers.addresses == (f"http://login1.example:{settings.web.listen.rpartition(':')[2]}",)
    site.program.write((example / "dags" / "sweep.py").read_text())
    site.executor = settings.executor
    site.machine()
    async with site.serving() as scheduler:
        run = await scheduler.run("sweep")
        log = await scheduler.client().task_logs(TaskInstanceKey(run.dag_id, run.run_id, "best"))
    assert run.state == "success"
    assert "the best is 3" in log.text


async def test_slurm_without_its_commands_is_refused_in_one_sentence(site: SlurmSite, monkeypatch):
    site.program.write(DAGS)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SettingsError, match="Slurm needs the command sbatch"):
        async with site.serving():
            pass
