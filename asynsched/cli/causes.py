"""The one error that several task groups wrap."""


def only_cause(error: BaseException) -> BaseException:
    """Return what an exception group wraps, where it is one error; else the error itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
