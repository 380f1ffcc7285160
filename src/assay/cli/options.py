"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from assay.claims.claim import LogprobsMode
from assay.errors import SettingsError
from assay.replay.request import PathChoice
from assay.scoring.channels import ChannelName

Server = Annotated[
    str, typer.Option("--server", help="Address of the vLLM server, such as http://127.0.0.1:8000.")
]
ApiKey = Annotated[
    str | None,
    typer.Option("--api-key", help="Key of the server. Default: the setting ASSAY_API_KEY."),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrency",
        min=1,
        max=1024,
        help="Requests in flight at once. Default: ASSAY_CONCURRENCY, else 8.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Mode = Annotated[
    str | None,
    typer.Option("--logprobs-mode", help="raw_logprobs or processed_logprobs."),
]
Profiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--profile",
        help="Profile of `assay calibrate`; may be repeated, each claim takes the one that fits.",
    ),
]
Fpr = Annotated[
    float,
    typer.Option(
        "--fpr", help="With a profile: chance that an honest claim (and an honest executor) fails."
    ),
]
AllowUnknown = Annotated[
    bool,
    typer.Option(
        "--allow-unknown",
        help="Let a profile fit claims that do not say which engine made them.",
    ),
]
Require = Annotated[
    list[str] | None,
    typer.Option(
        "--require",
        help="Channel without whose own pass no claim passes: choice, account or value; may be"
        " repeated. Ask for choice where you chose the seeds: a claim that does not say how its"
        " seed became draws is inconclusive then.",
    ),
]
CHANNELS = ("value", "choice", "account")
REQUEST_MODES = ("raw_logprobs", "processed_logprobs")


def request_mode(text: str | None) -> LogprobsMode | None:
    """The mode named on the command line; SettingsError for one that no request can ask for."""
    if text is None or text in REQUEST_MODES:
        return cast(LogprobsMode | None, text)
    raise SettingsError(f"--logprobs-mode {text}: expected one of {', '.join(REQUEST_MODES)}")


def path_choice(text: str) -> PathChoice:
    """The replay path named on the command line; SettingsError for an unknown one."""
    if text in get_args(PathChoice):
        return cast(PathChoice, text)
    raise SettingsError(f"--path {text}: expected one of {', '.join(get_args(PathChoice))}")


def required_channels(names: list[str] | None) -> tuple[ChannelName, ...]:
    """The channels named on the command line; SettingsError for one there is not."""
    for name in names or ():
        if name not in CHANNELS:
            raise SettingsError(f"--require {name}: expected one of {', '.join(CHANNELS)}")
    return tuple(cast(list[ChannelName], names or []))
