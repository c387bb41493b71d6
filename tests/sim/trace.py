"""What is to be read of a frame in a trace."""

from __future__ import annotations

from stages.messages import (
    Cancel,
    Closed,
    CloseSession,
    Cut,
    EndEpoch,
    Feed,
    Frame,
    Grant,
    Hello,
    InwardChanged,
    OnwardChanged,
    Open,
    Opened,
    OpenSession,
    Published,
    Refused,
    SessionOpened,
    SessionRefused,
    StepDone,
    Welcome,
)


def brief(frame: Frame) -> str:
    """`frame` without its payload, on one line."""
    return f"{type(frame).__name__} {_about(frame)}".rstrip()


def _about(frame: Frame) -> str:
    match frame:
        case OpenSession(session, epoch) | EndEpoch(session, epoch):
            return f"{session} epoch {epoch}"
        case CloseSession(session) | SessionOpened(session) | SessionRefused(session):
            return session
        case Open(tag) | Opened(tag) | Cancel(tag) | Cut(tag) | StepDone(tag):
            return tag.key
        case Feed(tag) | Grant(tag) | Published(tag) | Closed(tag) | Refused(tag):
            return f"{tag.key} {_more(frame)}"
    return _of_link(frame)


def _of_link(frame: Frame) -> str:
    match frame:
        case Hello(_, role, name):
            return f"{role} {name}"
        case Welcome(_, replica, incarnation):
            return f"{replica} {incarnation}"
        case OnwardChanged(target, up):
            return f"{target} {'up' if up else 'down'}"
        case InwardChanged(source, up):
            return f"{source} {'up' if up else 'down'}"
    return ""


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
    return ""
