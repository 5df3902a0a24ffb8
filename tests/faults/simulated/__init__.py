"""Faults, simulated: whole schedulers under virtual time, with everything around them failing as a seed decides.

The schedulers are the production classes, up to the frames that they exchange with their keepers and the statements
that they send to the database. Their surroundings are simulated: the event loop and its clock (`loop.py`), the keeper
and its processes (`keeper.py`, `tries.py`, `user_code.py`, `trigger_hosts.py`), the DAG folder and the processes that
parse its files (`dag_folder.py`), the failures of the database (`faulty_database.py`) and its notifications
(`notifications.py`), the restarts of schedulers (`site.py`), and the actions of people meanwhile (`people.py`). In a
quarter of the seeds tasks run on other machines (`elsewhere.py`): the executor, the workers' API and the workers'
agents are production classes, the engine (`carrier.py`), the network (`worker_network.py`) and the machines
(`worker_machines.py`) are simulated, and `tickets.py` states the invariants of tickets. In some seeds two schedulers
work on one database, as on PostgreSQL. It is SQLite all the same, so each transaction is done before the next begins:
locks are not tested here, but by the tests that use PostgreSQL. `exploration.py` explores one seed, `chance.py` draws
everything random, and `invariants.py`, `ledger.py`, `edits.py`, `decisions.py` and `expected_ends.py` state the
invariants meanwhile and in the end.

    python -m tests.faults.simulated --help
"""
