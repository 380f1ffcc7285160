"""``python -m assay.node.guard``: runs one backend and makes sure that nothing of it outlives the node.

The node holds the only write end of a pipe that is this process's standard input. When the node
dies, however it dies, the pipe closes and the backend is ended with all its children: SIGINT to
the server, SIGKILL to whatever is left after the grace. This process is a subreaper, so children
of the backend (engine core, workers) stay its descendants even when their own parent dies first.
The server is killed by the kernel when this process dies; the node kills the session then.

Standard library only: it must start fast and stay small, one runs beside every backend.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
LEFT_BEHIND_GRACE = 5.0
"""Seconds the children have to end by themselves after the server has: vLLM's trackers of shared
memory clean up then."""
TRACKER_GRACE = 20.0
"""Seconds more for those trackers once everything else is gone; they need a fraction of one where a
core is free, and what they leave behind when killed (0.4 GB a backend) stays until a reboot."""
ORPHAN_GRACE = 5.0
"""Seconds the server has when the node is gone; nobody waits for it any more."""
LOOK_EVERY = 0.05


def main(arguments: list[str]) -> int:
    """``GRACE TOLD COMMAND...``: returns the server's exit code, 128 + n when signal n ended it.

    ``TOLD`` is a file descriptor that is closed as soon as the server has ended: its children may
    take a while longer, and no request must go to a server that is gone.
    """
    grace, told, command = float(arguments[0]), int(arguments[1]), arguments[2:]
    os.set_inheritable(told, False)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake, wake_in = os.pipe()
    for end in (wake, wake_in):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
    wanted: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda number, frame: wanted.append(number))
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    server = _start(command)
    code = _watch(server, wake, wanted, grace)
    os.close(told)
    _end_descendants(0.0 if _kill_now(wanted) else min(LEFT_BEHIND_GRACE, grace))
    return code


def _start(command: list[str]) -> int:
    me = os.getpid()
    child = os.fork()
    if child:
        return child
    # Between fork and exec of the child: the signal mask and handlers are those of a new program.
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != me:
        os._exit(1)  # the guard died in between, so the kernel's promise came too late
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot start {command[0]}: {error}", file=sys.stderr, flush=True)
        os._exit(127)


def _watch(server: int, wake: int, wanted: list[int], grace: float) -> int:
    """Until the server has ended. Signals: SIGINT or SIGTERM end it, SIGUSR1 ends it at once."""
    deadline: float | None = None
    orphaned = False
    while True:
        code = _reap(server)
        if code is not None:
            return code
        now = time.monotonic()
        if deadline is None and (wanted or orphaned):
            os.kill(server, signal.SIGINT)
            deadline = now + (ORPHAN_GRACE if orphaned else grace)
        if orphaned and deadline is not None:
            deadline = min(deadline, now + ORPHAN_GRACE)
        if _kill_now(wanted) or (deadline is not None and now >= deadline):
            os.kill(server, signal.SIGKILL)
            deadline = now + LOOK_EVERY
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        watched = [wake] if orphaned else [wake, 0]
        readable, _, _ = select.select(watched, [], [], left)
        if wake in readable:
            _drain(wake)
        if 0 in readable and not os.read(0, 4096):
            orphaned = True


def _kill_now(wanted: list[int]) -> bool:
    return signal.SIGUSR1 in wanted


def _reap(server: int) -> int | None:
    """Collect every child that ended; the server's exit code when it is among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == server:
            ended = os.waitstatus_to_exitcode(status)
            code = ended if ended >= 0 else 128 - ended


def _end_descendants(grace: float) -> None:
    """Wait ``grace`` seconds for what is left, then kill until nothing is.

    Python's resource trackers unlink the shared memory of processes that are gone, once all of
    them are; killed together with them, a tracker would leave vLLM's rings in /dev/shm for ever.
    """
    deadline = time.monotonic() + grace
    alone_since: float | None = None
    while True:
        _reap(-1)
        left = descendants(os.getpid())
        if not left:
            return
        now = time.monotonic()
        others = [pid for pid in left if not _is_tracker(pid)]
        alone_since = None if others else alone_since or now
        if now >= deadline:
            for pid in others:
                _kill(pid)
        if alone_since is not None and now >= alone_since + TRACKER_GRACE:
            for pid in left:
                _kill(pid)
        time.sleep(LOOK_EVERY)


def _is_tracker(pid: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended by itself


def descendants(root: int) -> list[int]:
    """Running processes below ``root``, from /proc. As a subreaper the guard keeps them all."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            # "pid (name) state ppid ..."; the name may hold spaces and brackets.
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in "ZX":
            parents[int(entry.name)] = int(parent)
    found: set[int] = set()
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent == root or parent in found}
        grown = not more <= found
        found |= more
    return sorted(found)


def _drain(wake: int) -> None:
    try:
        while os.read(wake, 4096):
            pass
    except BlockingIOError:
        return


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) was refused")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
