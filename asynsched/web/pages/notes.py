"""`…/note`: what people note about a run or a task instance."""

from starlette.responses import Response

from asynsched.errors import AsynschedError
from asynsched.keys import TaskInstanceKey
from asynsched.queries.run_edits import store_run_note, store_task_note
from asynsched.queries.runs import get_run
from asynsched.queries.task_instances import get_task_instance
from asynsched.store.runs.notes import LONGEST_NOTE
from asynsched.web.access import Permission
from asynsched.web.endpoint import Call
from asynsched.web.pages.page import NOTHING_TYPED, PAGE, MapIndex, Typed, form_of, one, redirect, refused, show


@PAGE.endpoint("GET", "/dags/{dag_id}/runs/{run_id}/note", permission=Permission.OPERATE)
async def note_form(call: Call, dag_id: str, run_id: str, task_id: str = "", map_index: MapIndex = -1) -> Response:
    """Show the note of a run, or of one of its task instances, in a form."""
    if task_id:
        key = TaskInstanceKey(dag_id, run_id, task_id, map_index)
        text = (await call.context.ask(get_task_instance, key)).note
    else:
        text = (await call.context.ask(get_run, dag_id, run_id)).note
    return await _show(call, TaskInstanceKey(dag_id, run_id, task_id, map_index), text or "", NOTHING_TYPED)


async def _show(call: Call, key: TaskInstanceKey, text: str, typed: Typed) -> Response:
    """Show the form; a key without a task is that of the run."""
    return await show(call, "note.html", key=key, text=text, longest=LONGEST_NOTE, typed=typed, status=typed.status)


@PAGE.endpoint("POST", "/dags/{dag_id}/runs/{run_id}/note", permission=Permission.OPERATE)
async def note(call: Call, dag_id: str, run_id: str, task_id: str = "", map_index: MapIndex = -1) -> Response:
    """Store the note, and go back to the run or the task; an empty one removes it."""
    fields = await form_of(call)
    text = one(fields, "text").replace("\r\n", "\n")
    actor, now = call.who.name, call.context.clock.now()
    said = "The note is stored." if text else "The note is removed."
    key = TaskInstanceKey(dag_id, run_id, task_id, map_index)
    try:
        if task_id:
            await call.context.act(actor, store_task_note, key, text, actor, now)
        else:
            await call.context.act(actor, store_run_note, key.run, text, actor, now)
    except AsynschedError as exc:
        return await _show(call, key, text, refused(fields, exc))
    if not task_id:
        return redirect(call, "dags", dag_id, "runs", run_id, said=said)
    index = map_index if map_index >= 0 else None
    return redirect(call, "dags", dag_id, "runs", run_id, "tasks", task_id, said=said, map_index=index)
