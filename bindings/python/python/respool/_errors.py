"""Exceptions: the outcome of a request is a type."""

import redis

try:
    from redis._parsers.base import BaseParser
except ImportError:  # redis-py before 5.0
    from redis.connection import BaseParser


class NotSent(redis.ConnectionError):
    """The request was surely not executed. It may be sent again."""


class Unknown(redis.ConnectionError):
    """The request was sent and may have been executed. No reply has come."""


class NotSentTimeout(NotSent, redis.TimeoutError):
    """The request was surely not executed within its time."""


class UnknownTimeout(Unknown, redis.TimeoutError):
    """The request may have been executed. No reply has come within its time."""


class LoginRefused(NotSent, redis.AuthenticationError):
    """The server has refused the password or the user, so the request was not executed."""


class SessionEnded(NotSent):
    """The session ended before the request. A new session can be opened at once."""


# The words of an error of respool for a request that had too little time.
OUT_OF_TIME = ("; no reply from ", "; another worker of respool gave no answer within ")


# The words of an error of respool for a server that refuses the login.
LOGIN_REFUSED = ("the server refused: WRONGPASS", "the server refused: NOAUTH")


def not_sent(text, timed_out):
    """The exception for a request that was not executed."""
    if any(words in text for words in LOGIN_REFUSED):
        return LoginRefused(text)
    return NotSentTimeout(text) if timed_out or is_out_of_time(text) else NotSent(text)


def unknown(text, timed_out):
    """The exception for a request that may have been executed."""
    return UnknownTimeout(text) if timed_out or is_out_of_time(text) else Unknown(text)


def is_out_of_time(text):
    return any(words in text for words in OUT_OF_TIME)


def server_error(text):
    """The exception that redis-py has for an error of the server."""
    return BaseParser.parse_error(text)


def invalid(text):
    """The exception for a request that is not sent."""
    return redis.DataError(text)


class FateReply(redis.ResponseError):
    """An error reply of respool that tells the outcome of a request.

    It is a ResponseError while a pipeline reads its replies, because its connection is intact.
    """

    def __init__(self, text, is_not_sent):
        super().__init__(text)
        self.is_not_sent = is_not_sent

    def outcome(self, is_one_of_many=False):
        """The exception of the request, or of a pipeline whose other commands were executed."""
        text = self.args[0]
        if not self.is_not_sent:
            return unknown(text, False)
        if is_one_of_many:
            return unknown(f"{text}; other commands of the pipeline may have been executed", False)
        return not_sent(text, False)


_OURS = "respool: "
_NOT_EXECUTED = "respool: the command was not executed; "


def _not_sent_reply(text, **_):
    return FateReply(f"NOTSENT {text}", True) if text.startswith(_OURS) else redis.ResponseError(f"NOTSENT {text}")


def _unknown_reply(text, **_):
    return FateReply(f"UNKNOWN {text}", False) if text.startswith(_OURS) else redis.ResponseError(f"UNKNOWN {text}")


def _unless_ours(code, otherwise):
    """The maker of an error whose code is respool's if its text says so, and redis-py's otherwise."""

    def make(text, **details):
        if text.startswith(_NOT_EXECUTED):
            return FateReply(f"{code} {text}", True)
        return otherwise(text, **details)

    return make


_parsers = {}


def fate_parser(base):
    """A parser of redis-py whose errors tell the outcome of requests."""
    if base not in _parsers:
        classes = dict(base.EXCEPTION_CLASSES)
        for code in ("LOADING", "TRYAGAIN"):
            if code in classes:
                classes[code] = _unless_ours(code, classes[code])
        classes["NOTSENT"] = _not_sent_reply
        classes["UNKNOWN"] = _unknown_reply
        _parsers[base] = type(base.__name__, (base,), {"EXCEPTION_CLASSES": classes, "__slots__": ()})
    return _parsers[base]
