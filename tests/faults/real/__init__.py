"""Real schedulers under real faults: `python -m tests.faults` runs them.

dag_files.py   the DAGs
workload.py    how each of their tasks must end
ledger.py      the tasks' own records, and the entries that must never occur
processes.py   which processes there are, by their part in it
serving.py     schedulers that are started again whenever they have ended
faults.py      the faults, each drawn at random
elsewhere.py   the engine and the workers of a campaign whose tasks run on other machines
proxies.py     the network between them, which fails
campaign.py    one backend: work and faults at once, then peace, then the verdict
verdict.py     the errors in the end
report.py      the campaign in numbers
"""
