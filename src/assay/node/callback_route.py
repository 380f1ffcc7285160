"""How the callbacks of backends reach the node that started them.

The node's store is the one place where artifacts wait for their receiver, so a backend keeps its own
in memory, hands them over soon, and may call nobody but the node.
"""

from __future__ import annotations

from assay.node.config import NodeConfig

HAND_OVER_S = 0.5
"""Seconds a backend collects artifacts. It bounds what is mined again after a crash."""
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def own_host(config: NodeConfig) -> str:
    """The address backends on this machine reach the node at."""
    host = config.host.strip("[]")
    return _ANY.get(host, host)


def own_url(config: NodeConfig) -> str:
    """``http://host:port`` without a slash at the end."""
    host = own_host(config)
    return f"http://{f'[{host}]' if ':' in host else host}:{config.port}"


def callback_variables(config: NodeConfig) -> dict[str, str]:
    """Variables of backends that make them hand their artifacts to the node."""
    return {
        "POC_STORE": "sqlite://",
        "POC_CALLBACK_INTERVAL_SEC": f"{HAND_OVER_S:g}",
        "POC_CALLBACK_ALLOW": own_host(config),
    }
