"""Errors that the command line reports as one line instead of a traceback."""


class UsageError(ValueError):
    """Raised when an argument is invalid, unknown, or does not fit the others."""


class ReportError(RuntimeError):
    """Raised when all runs are finished but their report cannot be written."""


def describe_os_error(error: OSError) -> str:
    """Return the reason and the file of an error. If it has two files, the one to be written is named."""
    file = error.filename2 or error.filename
    return f"{error.strerror}: {file}" if file else str(error)
