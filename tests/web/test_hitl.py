"""Airflow's paths of questions to people."""

from asynsched.web.access import Identity, Permission

RUN = "/dags/asks/dagRuns/first"
QUESTION = f"{RUN}/taskInstances/approve/-1/hitlDetails"


async def test_questions_are_listed_with_their_task_instances(site):
    [asked] = (await site.get(f"{RUN}/hitlDetails"))["hitl_details"]
    assert (asked["subject"], asked["options"], asked["response_received"]) == ("Deploy?", ["Approve", "Reject"], False)
    assert (asked["task_instance"]["task_id"], asked["task_instance"]["state"]) == ("approve", "awaiting_input")
    assert asked == await site.get(QUESTION)
    for params, total in [
        ({"order_by": ["-created_at", "task_instance_state"], "subject_search": "DEPLOY", "body_search": "version"}, 1),
        ({"response_received": True}, 0),
        ({"task_id": "approve", "map_index": -1, "state": ["awaiting_input", "running"]}, 1),
        ({"dag_id_prefix_pattern": "sks"}, 0),
        ({"task_id_pattern": "APPR", "created_at_gte": asked["created_at"]}, 1),
    ]:
        assert (await site.get("/dags/~/dagRuns/~/hitlDetails", **params))["total_entries"] == total, params
    await site.get("/dags/fails/dagRuns/first/taskInstances/broken/-1/hitlDetails", 404)
    site.access.who = Identity(name="bob", permission=Permission.VIEW, of_dags={"fails": Permission.VIEW})
    assert (await site.get("/dags/~/dagRuns/~/hitlDetails"))["total_entries"] == 0


async def test_a_question_is_answered_once(site):
    for body, status, word in [
        ({"chosen_options": []}, 422, "chosen_options"),
        ({"chosen_options": ["Perhaps"]}, 400, "Reject"),
        ({"chosen_options": ["Approve", "Reject"]}, 400, "single"),
        ({"chosen_options": ["Approve"], "params_input": {"how": 1}}, 400, "how"),
        ({"chosen_options": ["Approve"], "params_input": {"why": 1}}, 400, "why"),
    ]:
        assert word in str(await site.call("PATCH", QUESTION, status, json=body)), body
    body = {"chosen_options": ["Approve"], "params_input": {"why": "tested"}}
    given = await site.call("PATCH", QUESTION, json=body)
    assert (given["responded_by"]["name"], given["chosen_options"], given["params_input"]) == (
        "ada", ["Approve"], {"why": "tested"}
    )  # fmt: skip
    assert (await site.get(QUESTION))["response_received"]
    assert "ada" in (await site.call("PATCH", QUESTION, 409, json=body))["detail"]
    for params, total in [
        ({"responded_by_user_id": ["bob", "ada"]}, 1),
        ({"responded_by_user_name": "bob"}, 0),
        ({"responded_by_user_name": "ada", "order_by": ["-responded_by_user_name", "responded_by_user_id"]}, 1),
    ]:
        assert (await site.get(f"{RUN}/hitlDetails", **params))["total_entries"] == total, params
