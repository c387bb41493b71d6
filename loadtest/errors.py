"""What can go wrong between a simulated caller and a server; every error says who must act.

    CallError
    ├── TargetError          the URL, the token or the resume ticket as given cannot be used: the user
    ├── ConnectError         no session came about
    │   ├── Unreachable          nothing answers there: start the server, or correct the address
    │   ├── Untrusted            its certificate is not known here: name it, or correct the address
    │   ├── Unauthorised         401, 403: another token
    │   ├── CapacityRefused      429, 503: the same request, later
    │   └── SessionRefused       anything else that the server said no to
    ├── ServerViolation      the server broke the protocol: the server's developer
    └── ConnectionLost       an open session ended without a goodbye: the network or the server

`advice` is a sentence for the person at the terminal.
"""

from __future__ import annotations


class CallError(Exception):
    """Base of all errors of a simulated caller."""

    advice = ""


class TargetError(CallError):
    """The address, token or resume ticket is malformed."""

    advice = "Give the server as http(s)://host:port or ws(s)://host:port; pass secrets by file or environment."


class ConnectError(CallError):
    """No session came about."""


class Unreachable(ConnectError):
    """No WebSocket server answers at that address."""

    advice = "Check that the server runs and that host, port and scheme (http or https) are right."


class Untrusted(ConnectError):
    """A TLS server answers, and cannot prove who it is."""

    advice = (
        "Name the certificate to trust with --cacert FILE; `duplex serve --tls-dev` keeps its own in the data folder, "
        "as tls/certificate.pem."
    )


class Unauthorised(ConnectError):
    """The server wants a token, or another one. `status` is 401 or 403."""

    advice = "Give a valid token with --token-file or in DUPLEX_TOKEN."

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"the server refused the token (HTTP {status}): {reason}")
        self.status = status


class CapacityRefused(ConnectError):
    """The server is full. `code` is its stable reason; `retry_after_s` is None where it named no time."""

    def __init__(self, code: str, reason: str, retry_after_s: float | None) -> None:
        when = "later" if retry_after_s is None else f"in {retry_after_s:g} s"
        super().__init__(f"the server takes no more calls ({code}): {reason}; retry {when}")
        self.code = code
        self.retry_after_s = retry_after_s
        self.advice = f"Call again {when}, end other calls, or give the server more capacity."


class SessionRefused(ConnectError):
    """The server answered, and said no. `code` is its stable reason, or the HTTP status."""

    advice = "The server's own reason stands above; check the path of the URL and the settings of the session."

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"the server refused the session ({code}): {reason}")
        self.code = code


class ServerViolation(CallError):
    """The server broke the Realtime protocol."""

    advice = "This is a fault of the server; its log should say more."


class ConnectionLost(CallError):
    """The connection closed. `close_code` is 1006 where the peer said nothing (RFC 6455, section 7.1.5)."""

    advice = "Check the server's log and the network; a session can be taken up again with --resume."

    def __init__(self, close_code: int, reason: str) -> None:
        super().__init__(f"the connection closed ({close_code}){': ' if reason else ''}{reason}")
        self.close_code = close_code
