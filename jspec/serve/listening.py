"""The socket of a server, taken before a model is loaded."""

import errno
import socket

from jspec._validate.errors import InputError


def bound(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound to an address, and does not listen yet."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise InputError(f"--host {host!r:.80} is not an address ({error.strerror})") from None
    family, kind, protocol, _, address = addresses[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise InputError(_refusal(error, host, port)) from None
    return listener


def _refusal(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; choose another --port, or end what uses it"
    return f"{host} and port {port} cannot be listened on ({error.strerror}); choose others"
