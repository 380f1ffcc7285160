"""The one error tree of assay. Every message names the field and says what to do."""

from __future__ import annotations


class AssayError(Exception):
    """Base of everything assay raises on purpose."""


class ClaimError(AssayError):
    """A claim or a response body that cannot be read as evidence.

    ``code`` is a stable name (``malformed``, ``position_gap``, ...) that verdicts reuse as a
    reason; ``field`` is a JSON path such as ``choices[0].logprobs.content[3].logprob``.
    """

    def __init__(self, message: str, *, code: str = "malformed", field: str | None = None) -> None:
        super().__init__(message if field is None else f"{field}: {message}")
        self.code = code
        self.field = field


class RequestError(AssayError):
    """A request field the plugin refuses with HTTP 400. ``param`` names the field, with its index."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param


class ReplayError(AssayError):
    """The validator's own engine could not run the claim again.

    ``blame`` says whose fault it is: ``claim`` (the executor wrote something no engine accepts,
    which counts against the claim) or ``validator`` (outage, time-out: no verdict at all).
    ``code`` is the stable name a verdict uses for it; ``status`` the HTTP status, if there was one.
    """

    def __init__(
        self,
        message: str,
        *,
        blame: str,
        status: int | None = None,
        code: str = "replay_failed",
    ) -> None:
        super().__init__(message)
        self.blame = blame
        self.status = status
        self.code = code


class SurfaceError(AssayError):
    """The installed engine lacks a private name the plugin needs; the server must not start."""


class SettingsError(AssayError):
    """A setting or a flag has a value that cannot be used."""


class StoreError(AssayError):
    """The database refused or holds something this version cannot read."""


class ProfileError(AssayError):
    """A calibration profile that cannot be read, made, merged or used as asked."""
