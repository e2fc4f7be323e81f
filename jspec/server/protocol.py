"""HTTP as uvicorn reads it; bytes that are none are answered in the API's shape too."""

import json
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from jspec.server.errors import APIError


def _refuse(self: Any, msg: str) -> None:
    del msg  # uvicorn's words
    wrong = APIError(400, "this is no request of HTTP/1.1; is the address one of http:// ?")
    body = json.dumps(wrong.body).encode()
    head = (
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    self.transport.write(head.encode() + body)
    self.transport.close()


# uvicorn chooses its protocol by what is installed; each of them answers by this method.
Protocol: Any = type("Protocol", (AutoHTTPProtocol,), {"send_400_response": _refuse})
