"""Where callbacks may go: the host that asked, the loopback, and what the operator allows.

A callback is a request this server makes for somebody else. Addresses are checked when the
request comes in and again at every sending, and the connection goes to the address that was
checked: a name that changes its address in between reaches nothing new.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from dataclasses import dataclass
from typing import Any

import httpx

from assay.errors import AssayError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
ANY_HOST = "*"


class TargetError(AssayError):
    """A receiver that may not be named, and what to do about it; the message begins with ``url:``."""


@dataclass(frozen=True)
class Connection:
    """One way to reach a receiver: where to connect, and who it is said to be."""

    url: httpx.URL
    headers: dict[str, str]
    extensions: dict[str, Any]


class CallbackTargets:
    """``allow``: host names, addresses, networks (``10.0.0.0/8``), or ``*``. ``setting``: what an
    operator sets to allow more."""

    def __init__(self, allow: tuple[str, ...], setting: str) -> None:
        self._setting = setting
        self._names: set[str] = set()
        self._networks: list[Network] = []
        for entry in allow:
            try:
                self._networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                self._names.add(entry.lower().rstrip("."))

    def check_url(self, text: str) -> httpx.URL:
        """The base of a callback; TargetError unless it is a plain http or https URL."""
        try:
            url = httpx.URL(text)
        except (httpx.InvalidURL, ValueError) as error:
            raise TargetError(f"url: {error}") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise TargetError("url: give an http:// or https:// address of the receiver")
        if url.userinfo or url.query or url.fragment:
            raise TargetError("url: must have no user, query or fragment; a path is added to it")
        return url

    async def check(self, text: str, caller: str | None) -> None:
        """TargetError for a receiver that ``caller`` may not name."""
        await self.connections(text, "", caller)

    async def connections(self, base: str, path: str, caller: str | None) -> list[Connection]:
        """Ways to ``base + path``, in the order to try. Raises TargetError when none is allowed."""
        self.check_url(base)
        # The base's own escapes are part of the address (model ids are escaped twice): the text
        # is put together here and not parsed and written again.
        url = httpx.URL(base.rstrip("/") + path)
        if ANY_HOST in self._names or url.host.lower().rstrip(".") in self._names:
            return [Connection(url, {}, {})]
        addresses = await _addresses(url)
        allowed = [address for address in addresses if self._allowed(address, caller)]
        if not allowed:
            found = ", ".join(map(str, addresses)) or "no address"
            raise TargetError(
                f"url: {url.host} ({found}) is neither the caller nor the loopback; add it to "
                f"{self._setting}"
            )
        return [_pinned(url, address) for address in allowed]

    def _allowed(self, address: Address, caller: str | None) -> bool:
        if address.is_loopback or str(address) == _plain(caller):
            return True
        return any(address in network for network in self._networks)


async def _addresses(url: httpx.URL) -> list[Address]:
    try:
        return [_unmapped(ipaddress.ip_address(url.host))]
    except ValueError:
        pass  # a name
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            url.host, url.port or _default_port(url), type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError):
        return []
    addresses = [_unmapped(ipaddress.ip_address(entry[4][0])) for entry in found]
    return list(dict.fromkeys(addresses))


def _pinned(url: httpx.URL, address: Address) -> Connection:
    """Connect to ``address``, and keep the name for the Host header and the certificate."""
    extensions = {"sni_hostname": url.host} if url.scheme == "https" else {}
    return Connection(
        url.copy_with(host=str(address)), {"Host": url.netloc.decode("ascii")}, extensions
    )


def _unmapped(address: Address) -> Address:
    """::ffff:127.0.0.1 is 127.0.0.1."""
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped if mapped is not None else address


def _plain(caller: str | None) -> str | None:
    if caller is None:
        return None
    try:
        return str(_unmapped(ipaddress.ip_address(caller)))
    except ValueError:
        return None


def _default_port(url: httpx.URL) -> int:
    return 443 if url.scheme == "https" else 80
