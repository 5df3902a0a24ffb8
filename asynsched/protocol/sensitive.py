"""Which variables and fields of connections hold secrets: decided by their names, for logs and for commands."""

_SENSITIVE_NAMES = (
    "access_key", "access_token", "api_key", "apikey", "authorization", "keyfile_dict", "passphrase", "passwd",
    "password", "private_key", "secret", "service_account", "token",
)  # fmt: skip
"""Source: Airflow's secrets masker, DEFAULT_SENSITIVE_FIELDS."""


def is_sensitive(name: str) -> bool:
    """Return whether a variable or field of that name holds a secret."""
    lowered = name.strip().lower()
    return any(word in lowered for word in _SENSITIVE_NAMES)
