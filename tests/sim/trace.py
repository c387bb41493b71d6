"""What is to be read of a frame in a trace."""

from __future__ import annotations

from stages.messages import (
    Closed,
    CloseSession,
    EndEpoch,
    Feed,
    Frame,
    Grant,
    Hello,
    OnwardChanged,
    OpenSession,
    Published,
    Refused,
    SessionOpened,
    SessionRefused,
    Welcome,
)


def brief(frame: Frame) -> str:
    """`frame` without its payload, on one line."""
    return f"{type(frame).__name__} {_about(frame)}"


def _about(frame: Frame) -> str:
    match frame:
        case Hello(_, role, name):
            return f"{role} {name}"
        case Welcome(_, stage, incarnation):
            return f"{stage} {incarnation}"
        case OnwardChanged(up):
            return "up" if up else "down"
        case OpenSession(session, epoch) | EndEpoch(session, epoch):
            return f"{session} epoch {epoch}"
        case CloseSession(session) | SessionOpened(session) | SessionRefused(session):
            return session
        case _:
            return f"{frame.tag.key} {_more(frame)}".rstrip()


def _more(frame: Frame) -> str:
    match frame:
        case Feed(_, item, units):
            return f"{type(item).__name__} {units}"
        case Grant(_, units):
            return str(units)
        case Published(_, event):
            return type(event).__name__
        case Closed(_, outcome, _, code):
            return f"{outcome} {code}"
        case Refused(_, code):
            return code
        case _:
            return ""
