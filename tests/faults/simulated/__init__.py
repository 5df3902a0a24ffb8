"""Faults, simulated: whole schedulers under virtual time, with everything around them failing as a seed decides.

The schedulers are the production classes, up to the frames that they exchange with their keepers and the statements
that they send to the database. What surrounds them is simulated: the event loop and its clock (`loop.py`), the keeper
and its processes (`keeper.py`, `tries.py`, `user_code.py`, `trigger_hosts.py`), the DAG folder and the processes that
parse its files (`dag_folder.py`), the failures of the database (`faulty_database.py`) and
what it tells those who listen (`notifications.py`), whoever starts a scheduler again that is gone (`site.py`), and what
people do meanwhile (`people.py`). In some seeds two schedulers work on one database, as on PostgreSQL. It is SQLite all
the same, so each transaction is done before the next begins: what locks are for is not seen here, but by the tests that
use PostgreSQL. `exploration.py` lives through one seed, `chance.py` draws all that is left to chance, and
`invariants.py`, `ledger.py`, `edits.py`, `decisions.py` and `expected_ends.py` say what must hold meanwhile and in the
end.

    python -m tests.faults.simulated --help
"""
