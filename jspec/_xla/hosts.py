"""Several processes as one JAX: all are there before it starts, and none is missed in silence.

`jax.distributed` aborts with a stack trace where a process is absent or dies, or waits for minutes.
Here a roll is called first, over plain sockets that stay open: a process that is missing, or that
ends before the others, is one sentence.
"""

import os
import selectors
import socket
import sys
import threading
import time

import jax

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError

_BYE, _ALIVE, _GO = b"b", b".", b"g"
_EVERY = 1.0
"""Seconds between two signs of life."""
_AT_ONCE = 2.0
"""Seconds in which a process that has connected says its number."""


def join(coordinator: str, num_processes: int, process: int, timeout: float = 60.0) -> None:
    """Joins the processes of a run, one a host; then `jax.devices()` has the devices of all.

    Call it first, before JAX makes any array. If a process ends before the others, or gives no sign
    of life for `timeout` seconds, every other one says so on stderr and ends with status 1: their
    programs wait for it and could not go on.

    Args:
        coordinator: "host:port" of process 0, as the others reach it. The port after it is used
            too.
        num_processes: of the run.
        process: which this one is, from 0.
        timeout: seconds to wait for the others.

    Raises:
        InputError: if a process does not come in time, or an argument is out of range.

    Example:
        >>> join("localhost:9911", num_processes=1, process=0)  # nobody to wait for
    """
    check_integer("num_processes", num_processes, 1, None)
    check_integer("process", process, 0, num_processes - 1, "the processes of the run")
    host, _, port = coordinator.rpartition(":")
    # The port after it has to be one too.
    if not host or not port.isdecimal() or not 0 < int(port) < 65535:
        raise InputError(
            f"coordinator is {coordinator!r}; pass host:port of process 0, the port in 1 .. 65534"
        )
    if num_processes == 1:
        return
    address, deadline = (host.strip("[]"), int(port) + 1), time.monotonic() + timeout
    if process == 0:
        peers = _call_roll(address, num_processes, deadline, timeout)
    else:
        peers = {0: _answer(address, process, deadline, timeout)}
    _JOINED[:] = peers.values()
    threading.Thread(
        target=_watch, args=(peers, num_processes, timeout), name="jspec-hosts", daemon=True
    ).start()
    jax.distributed.initialize(
        coordinator, num_processes, process, initialization_timeout=max(int(timeout), 1)
    )


def leave() -> None:
    """Ends this process's part of a run, so that the others are not told of its end.

    Example:
        >>> leave()  # of no run: nothing
    """
    for peer in _JOINED:
        _send(peer, _BYE)
    if _JOINED:
        jax.distributed.shutdown()
    _JOINED.clear()


_JOINED: list[socket.socket] = []
"""The sockets of the run that this process is part of."""


def _call_roll(
    address: tuple[str, int], count: int, deadline: float, timeout: float
) -> dict[int, socket.socket]:
    """The sockets of all other processes, by number, once all have come."""
    peers: dict[int, socket.socket] = {}
    with _door(address[1]) as door:
        while missing := sorted(set(range(1, count)) - peers.keys()):
            door.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                peer, _ = door.accept()
            except TimeoutError:
                names = ", ".join(map(str, missing))
                raise InputError(
                    f"process {names} of {count} did not come within {timeout:g} seconds; start "
                    f"the same script with each number from 0 to {count - 1}, and let each reach "
                    f"{address[0]}:{address[1]}"
                ) from None
            number = _number(peer)
            if 0 < number < count:
                peers[number] = peer  # the last one: it was started again
            else:
                peer.close()
    for peer in peers.values():
        peer.sendall(_GO)
    return peers


def _door(port: int) -> socket.socket:
    """A socket that all hosts reach, by whichever version of IP."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise InputError(
            f"port {port}, the one after the coordinator's, cannot be listened at "
            f"({error.strerror}); choose another port for the coordinator"
        ) from error


def _number(peer: socket.socket) -> int:
    """The number that a process says first; -1: it is none of this run, as scanners of ports are
    none.
    """
    peer.settimeout(_AT_ONCE)
    try:
        said = peer.recv(5)
    except OSError:
        return -1
    return int.from_bytes(said, "big") if len(said) == 4 else -1


def _answer(
    address: tuple[str, int], process: int, deadline: float, timeout: float
) -> socket.socket:
    """The socket to process 0, once it says that all have come."""
    while True:
        left = max(deadline - time.monotonic(), 0.01)
        try:
            peer = socket.create_connection(address, timeout=left)
            peer.sendall(process.to_bytes(4, "big"))
            peer.settimeout(max(deadline - time.monotonic(), 0.01))
            if peer.recv(1) == _GO:
                return peer
            raise ConnectionError
        except OSError:
            if time.monotonic() + 0.1 < deadline:
                time.sleep(0.1)
                continue
            raise InputError(
                f"process {process} heard nothing of process 0 at {address[0]}:{address[1]} within "
                f"{timeout:g} seconds; start it too, or another process is missing there"
            ) from None


def _watch(peers: dict[int, socket.socket], count: int, timeout: float) -> None:
    """Waits for signs of life; ends this process where one of another fails."""
    listening = selectors.DefaultSelector()
    heard = dict.fromkeys(peers, time.monotonic())
    for number, peer in peers.items():
        peer.settimeout(None)
        listening.register(peer, selectors.EVENT_READ, number)
    while heard:
        for key, _ in listening.select(_EVERY):
            said = _receive(key.fileobj)  # type: ignore[arg-type]
            if _BYE in said:
                listening.unregister(key.fileobj)
                del heard[key.data]
            elif said:
                heard[key.data] = time.monotonic()
            else:
                _end(f"process {key.data} of {count} ended before the others")
        for number, peer in peers.items():
            if number not in heard:
                continue
            _send(peer, _ALIVE)
            if time.monotonic() - heard[number] > timeout:
                _end(f"process {number} of {count} gave no sign for {timeout:g} seconds")


def _receive(peer: socket.socket) -> bytes:
    try:
        return peer.recv(4096)
    except OSError:
        return b""


def _send(peer: socket.socket, said: bytes) -> None:
    try:
        peer.sendall(said)
    except OSError:
        return  # it is found missing when it is listened to


def _end(what: str) -> None:
    """Ends the process, whose main thread waits inside of a program and can be told nothing."""
    print(f"error: {what}, which the programs here wait for; start all again", file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)
