"""A DAG that tries to run scripts wherever the page shows what it says."""

from asynsched import DAG, Asset, Label, Param, TaskGroup, task

SCRIPT = "<script>alert(1)</script>"
PICTURE = '<img src=x onerror="alert(2)">'
LINKS = f"[click](javascript:alert(4)) [data](data:text/html,{SCRIPT}) <a href='#' onclick='alert(5)'>x</a>"
QUOTED = "\"'><svg onload=alert(3)>"

with DAG(
    "hostile",
    schedule=None,
    description=f"{SCRIPT}{PICTURE}",
    dag_display_name=f"{SCRIPT}{QUOTED}",
    doc_md=f"# {SCRIPT}\n\n{PICTURE}\n\n{LINKS}",
    tags=[SCRIPT, QUOTED],
    default_args={"owner": PICTURE},
    params={QUOTED: Param(SCRIPT, title=SCRIPT, description=PICTURE, enum=[SCRIPT, QUOTED])},
):
    with TaskGroup("group", tooltip=SCRIPT):

        @task(doc_md=f"{SCRIPT}[click](javascript:alert(6))", outlets=[Asset(QUOTED, uri=f"s3://{SCRIPT}")])
        def attack(*, ti=None):
            print(SCRIPT)
            print(PICTURE)
            print("\x1b[2J\x1b]0;title\x07")
            ti.xcom_push(QUOTED, {SCRIPT: PICTURE})
            return f"</pre>{SCRIPT}"

        attacked = attack()

    @task
    def after():
        pass

    attacked >> Label(SCRIPT) >> after()
