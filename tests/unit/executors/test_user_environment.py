"""What user code sees of the scheduler's environment."""

import inspect
import re

from asyncpg import connect_utils

from asynsched.executors.user_environment import POSTGRESQL_VARIABLES, user_environment


def test_all_that_leads_to_a_postgresql_database_is_the_schedulers_and_with_sqlite_the_tasks():
    environment = {"ASYNSCHED_FERNET_KEY": "k", "PGPASSWORD": "p", "PGTZ": "UTC", "HOME": "/"}
    assert user_environment(environment, is_postgresql=True) == {"PGTZ": "UTC", "HOME": "/"}
    assert user_environment(environment, is_postgresql=False) == {"PGPASSWORD": "p", "PGTZ": "UTC", "HOME": "/"}


def test_every_variable_that_the_driver_reads_is_known():
    read = re.findall(r"""(?:getenv|environ\.get)\(\s*["'](PG\w+)""", inspect.getsource(connect_utils))
    assert {"PGHOST", "PGPASSWORD", "PGTARGETSESSIONATTRS"} <= set(read) <= POSTGRESQL_VARIABLES
