"""The part of the scheduler's environment that user code sees."""

import inspect
import re

from asyncpg import connect_utils

from asynsched.executors.base import POSTGRESQL_VARIABLES, user_environment


def test_tasks_get_postgresql_variables_only_if_the_database_is_sqlite():
    environment = {"ASYNSCHED_FERNET_KEY": "k", "PGPASSWORD": "p", "PGTZ": "UTC", "HOME": "/"}
    assert user_environment(environment, is_postgresql=True) == {"PGTZ": "UTC", "HOME": "/"}
    assert user_environment(environment, is_postgresql=False) == {"PGPASSWORD": "p", "PGTZ": "UTC", "HOME": "/"}


def test_every_variable_that_the_driver_reads_is_known():
    read = re.findall(r"""(?:getenv|environ\.get)\(\s*["'](PG\w+)""", inspect.getsource(connect_utils))
    assert {"PGHOST", "PGPASSWORD", "PGTARGETSESSIONATTRS"} <= set(read) <= POSTGRESQL_VARIABLES
