"""Errors and warnings that the command line reports as one line."""


class UsageError(ValueError):
    """Raised when an argument is invalid, unknown, or does not fit the others."""


class ReportError(RuntimeError):
    """Raised when all runs are finished but their report cannot be written."""


class DataError(ValueError):
    """Raised for an invalid data file. The message names the file, what was expected and what was found."""


class LoggerError(RuntimeError):
    """Raised when a logger cannot be used."""


class RunError(RuntimeError):
    """Raised when a batch of runs failed, with the error of its worker."""


class CorruptWarning(UserWarning):
    """A file on disk is damaged. Its run or batch is repeated."""


def describe_os_error(error: OSError) -> str:
    """Return the reason and the file of an error. If it has two files, the one to be written is named."""
    file = error.filename2 or error.filename
    return f"{error.strerror}: {file}" if file else str(error)
