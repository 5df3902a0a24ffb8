"""What users and tokens may do."""

from enum import IntEnum


class Permission(IntEnum):
    """What a request needs; each includes those before it.

    `NOTHING` is open to everybody, such as the sign-in itself. `VIEW` reads, except for variables, connections and
    settings. `OPERATE` reads the first two, triggers, pauses, clears, marks, answers questions, and edits pools and
    variables. `ADMINISTER` edits connections and users, and reads settings.
    """

    NOTHING = 0
    VIEW = 1
    OPERATE = 2
    ADMINISTER = 3
