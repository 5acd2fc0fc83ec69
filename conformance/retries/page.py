"""The cases, and docs/retries.md: a table per question, a row per library and kind of client."""

import re
from dataclasses import dataclass

KINDS = ["plain", "cluster"]
# Single requests, and pipelines with a first or second request that is refused.
REQUESTS = ["GET", "INCR", "first", "second"]


@dataclass(frozen=True)
class Case:
    """The server's part in one request."""

    name: str
    error: str | None = None
    closes: bool = False
    # The connections are closed before the request is sent.
    idle: bool = False


WORDS = ["LOADING", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "MASTERDOWN"]
OTHER_WORDS = ["BUSY", "NOTSENT", "UNKNOWN", "ERR"]
MAX_CLIENTS = "max clients"
CLOSED, IDLE = "closed", "closed while idle"
CASES = [
    *(Case(word, f"{word} respool: the command was not executed") for word in WORDS + OTHER_WORDS),
    Case(MAX_CLIENTS, "ERR max number of clients reached"),
    Case(CLOSED, closes=True),
    Case(IDLE, idle=True),
]


@dataclass(frozen=True)
class Outcome:
    """The attempts of a library at one request, and the outcome for its application."""

    # How often the request came, from its first attempt to its last.
    attempts: int
    seconds: float
    connections: int
    # How often the other request of the pipeline came.
    others: int
    # Whether the library gave up while the server still refused.
    gave_up: bool
    # The class of the application's error.
    error: str | None

    def cell(self):
        if self.attempts <= 1:
            return "error" if self.error else "served"
        if not self.gave_up:
            return "goes on"
        return f"{self.attempts - 1} more in {self.seconds:.1f} s"


# Each has a title, a text, its columns, and a function from (outcomes, column) to a cell.
def single(outcomes, case):
    get, incr = (outcomes[case, request].cell() for request in ("GET", "INCR"))
    return incr if timeless(get) == timeless(incr) else f"GET: {get}; INCR: {incr}"


def pipeline(outcomes, case):
    again = [position for position in ("first", "second") if outcomes[case, position].others > 1]
    if not again:
        return "no"
    return "yes" if len(again) == 2 else f"if the {again[0]} fails"


def caught(outcomes, case):
    return f"`{outcomes[case, 'INCR'].error}`" if outcomes[case, "INCR"].error else "none"


TABLES = [
    (
        "Errors of a server that says 'ask again'",
        "The reply to the request is an error with one of these codes, each time, for ten seconds.",
        WORDS,
        single,
    ),
    ("Other errors", f"`{MAX_CLIENTS}` is Redis's `ERR max number of clients reached`.", OTHER_WORDS + [MAX_CLIENTS], single),
    (
        "Closed connections",
        "`closed`: the server has read the request and closes the connection in place of a reply, each time.\n"
        "The server may have executed it, and a library that sends an INCR again may count twice.\n"
        "`closed while idle`: the server has closed the connection 0.3 s before the request; `error`: at\n"
        "least one of six tries fails.",
        [CLOSED, IDLE],
        single,
    ),
    (
        "Pipelines",
        "A pipeline has two INCRs. One is refused, the other is executed. `yes`: the library sends the\n"
        "executed INCR again, because it repeats the whole pipeline. This counts twice.",
        WORDS + ["NOTSENT", "UNKNOWN", CLOSED],
        pipeline,
    ),
    (
        "Errors that the application catches",
        "The class of the error at an INCR. `none`: the library tried until the server served it.",
        ["LOADING", "TRYAGAIN", "NOTSENT", CLOSED],
        caught,
    ),
]

INTRODUCTION = """\
# Requests that client libraries repeat

This page says which errors a client library answers by sending the request again, and which it
gives to the application. Each library runs with its default settings before a server that refuses
one request. `make retries` runs all of them and writes the page; `conformance/retries/run --check`
runs the prepared ones and compares.

The cells:

- `error`: the application gets the error, and the request is not sent again;
- `N more in T s`: the request comes N times more within T seconds, then the application gets the
  error. T varies;
- `goes on`: the request still comes after ten seconds;
- `served`: the request comes once, and the application gets its reply.

A `plain` client takes the server for a single one, a `cluster` client for a node of a Cluster.
StackExchange.Redis is not in the tables: there is no .NET runtime in the registries that this
project uses.
"""

CONCLUSION = """\
## The answers of respool

respool says `UNKNOWN` where a request may have been executed. No library sends a request again that
has this error. If respool closed the connection instead, six of the nine libraries would send an
INCR again. So it does not close a session that shares links for that.

respool says `LOADING` where a request was surely not executed because its server is away. The
connection must have all earlier replies by then, and must have sent nothing else. The text behind
the word is respool's: `LOADING respool: the command was not executed; ...`. Plain clients of
redis-py, go-redis and Redisson send the request again, and rueidis does for reads. In redis-py the
class of this error is a `ConnectionError`, as for a direct server that is away.

`server-down-error=tryagain` suits clients of a Cluster. It is not the default in front of a
Cluster, because plain clients speak to respool there, too, and take `TRYAGAIN` for a wrong request.
`server-down-error=notsent` suits programs that know respool.

Everywhere else a request that was not executed has `NOTSENT`, which no library repeats:

- in a pipeline: redis-py, go-redis and redis-rs repeat the whole pipeline for the other words, with
  its executed requests;
- at a bound of respool and at a deadline: the request has waited already, and another try adds
  load;
- for EXEC: its transaction is gone, so EXEC alone cannot be sent again;
- for requests larger than `request-held-bytes-max`, which may have the error before their end was
  sent.

No word makes all libraries try again. ioredis, node-redis, Jedis, Lettuce and redis-rs, as plain
clients, try again for none. With these the application sees an error once a server is away for
longer than `outage-hold-ms`.
"""


def rows(outcomes, columns, cell):
    """The cells of each row: {(library, kind): cells}."""
    return {key: [cell(found, column) for column in columns] for key, found in outcomes.items()}


def markdown(versions, outcomes):
    """The whole page."""
    parts = [INTRODUCTION]
    for title, text, columns, cell in TABLES:
        lines = [f"## {title}", "", text, "", f"| library | client | {' | '.join(headings(columns))} |"]
        lines.append("|---" * (len(columns) + 2) + "|")
        for (library, kind), cells in rows(outcomes, columns, cell).items():
            lines.append(f"| {library} {versions[library]} | {kind} | {' | '.join(cells)} |")
        parts.append("\n".join(lines) + "\n")
    parts.append(CONCLUSION)
    return "\n".join(parts)


def headings(columns):
    return [f"`{column}`" for column in columns]


def differences(page, versions, outcomes):
    """The rows of these outcomes that the page does not have. Times are not compared."""
    lines = {timeless(line) for line in page.splitlines()}
    return [
        f"retries: not in the page: {line}"
        for line in markdown(versions, outcomes).splitlines()
        if line.startswith("|") and timeless(line) not in lines
    ]


def timeless(text):
    """The text without the parts that vary between runs: times, and counts of connections."""
    return re.sub(r"\b[0-9]+ more in [0-9.]+ s\b", "more", text)
