"""The clients of this process, and the options that choose one."""

import atexit
import os
import threading
import weakref
from urllib.parse import quote

import redis
import redis.connection

from respool import _respool

# Arguments of redis-py about its sockets. They have no meaning here.
WITHOUT_EFFECT = {"socket_keepalive", "socket_keepalive_options", "socket_type", "timeout"}
# Arguments that name the server.
OF_SERVER = {
    "host",
    "port",
    "path",
    "unix_socket_path",
    "username",
    "password",
    "credential_provider",
    "socket_connect_timeout",
}
# Arguments of TLS with an option of respool, or with a check below.
OF_TLS = {
    "ssl",
    "ssl_keyfile",
    "ssl_certfile",
    "ssl_cert_reqs",
    "ssl_ca_certs",
    "ssl_check_hostname",
    "ssl_min_version",
}
# Values of other arguments of TLS that change nothing.
UNSET = (None, False, (), [])
# Options whose defaults are not those of respool: the text of an error says its outcome.
DEFAULTS = {"server-down-error": "notsent"}
PYTHON_SCHEMES = ("redis", "rediss", "unix")
RESPOOL_SCHEMES = (
    "redis-cluster",
    "rediss-cluster",
    "redis-sentinel",
    "rediss-sentinel",
    "redis-sharded",
    "rediss-sharded",
)


# No event loop, and no calls of it.
NO_LOOP = (lambda: None, None)


class Core:
    """A client that Redis objects and pools with the same URL, options and protocol share."""

    def __init__(self, url, options, resp3):
        self.url = url
        self.options = options
        self.native = _respool.Client(url, options, resp3)
        # The pools that have not been closed.
        self.users = weakref.WeakSet()
        # The calls of each event loop, and those of the loop that asked last.
        self.loops = weakref.WeakKeyDictionary()
        self.last = NO_LOOP

    def use(self, user):
        self.users.add(user)

    def leave(self, user):
        """Ends the client with its last user. It opens again when it is used again."""
        self.users.discard(user)
        if not self.users:
            self.forget_loops()
            self.native.close()

    def forget_loops(self):
        self.last = NO_LOOP
        for loop in list(self.loops):
            entry = self.loops.pop(loop, None)
            if entry is not None:
                entry.close()

    def in_child(self):
        """Begins anew in the child of a fork."""
        for entry in list(self.loops.values()):
            entry.calls.fail("UNKNOWN the process was forked while the request was under way")
        self.loops = weakref.WeakKeyDictionary()
        self.last = NO_LOOP


_cores = weakref.WeakValueDictionary()
_lock = threading.Lock()


def _in_child():
    global _lock
    _lock = threading.Lock()
    _respool.forked()
    for core in list(_cores.values()):
        core.in_child()


os.register_at_fork(after_in_child=_in_child)
# Threads that wait in a call stay there: the process ends without them.
atexit.register(_respool.leaving)


def core_of(kwargs):
    """The client for the arguments of a connection or a pool."""
    url = kwargs.get("respool_url")
    options = dict(DEFAULTS)
    if url is None:
        url = _url_of(kwargs, options)
    else:
        _check_alone(url, kwargs)
    pairs = [(name, value) for name, value in options.items()]
    given = _given_options(kwargs.get("respool_options"))
    names = {name for name, _ in given}
    pairs = [pair for pair in pairs if pair[0] not in names] + given
    resp3 = protocol_of(kwargs) == 3
    key = (url, tuple(pairs), resp3)
    with _lock:
        core = _cores.get(key)
        if core is None:
            core = _cores[key] = Core(url, pairs, resp3)
        return core


def protocol_of(kwargs):
    """The protocol on the wire, as redis-py chooses it."""
    protocol = kwargs.get("protocol")
    if protocol is None:
        return getattr(redis.utils, "DEFAULT_RESP_VERSION", 2)
    try:
        protocol = int(protocol)
    except (TypeError, ValueError):
        raise redis.ConnectionError("protocol must be an integer") from None
    if protocol not in (2, 3):
        raise redis.ConnectionError("protocol must be either 2 or 3")
    return protocol


def _given_options(options):
    """The options of respool, as names and texts. A list gives an option several values."""
    pairs = []
    for name, value in dict(options or {}).items():
        name = str(name).replace("_", "-")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            text = str(one).lower() if isinstance(one, bool) else str(one)
            pairs.append((name, text))
    return pairs


def _check_alone(url, kwargs):
    """Refuses arguments that the URL has to have."""
    for name in sorted(OF_SERVER | OF_TLS | {"db"}):
        if kwargs.get(name) not in (None, False, 0):
            raise ValueError(f"{name}: give it in the URL {url.split('//')[0]}//..., or by respool_options")


def _url_of(kwargs, options):
    login = _login_of(kwargs)
    tls = _tls_of(kwargs, options)
    if kwargs.get("socket_connect_timeout") is not None:
        options["connect-timeout-ms"] = str(max(1, round(float(kwargs["socket_connect_timeout"]) * 1000)))
    db = int(kwargs.get("db") or 0)
    path = kwargs.get("path") or kwargs.get("unix_socket_path")
    if path:
        if tls:
            raise ValueError("ssl: a UNIX socket has no TLS")
        return f"unix://{login}{quote(os.fspath(path))}?db={db}"
    host = str(kwargs.get("host") or "localhost")
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    port = int(kwargs.get("port") or 6379)
    return f"{'rediss' if tls else 'redis'}://{login}{host}:{port}/{db}"


def _login_of(kwargs):
    username, password = kwargs.get("username"), kwargs.get("password")
    provider = kwargs.get("credential_provider")
    if provider is not None:
        if username or password:
            raise redis.DataError(
                "'username' and 'password' cannot be passed along with 'credential_provider'. "
                "Please provide only one of the following arguments: \n"
                "1. 'password' and (optional) 'username'\n"
                "2. 'credential_provider'"
            )
        if hasattr(provider, "on_next"):
            raise ValueError(
                "credential_provider: respool does not take a stream of tokens; "
                "give respool_options={'backend-password-command': ...}, which is run again"
            )
        credentials = provider.get_credentials()
        username, password = credentials if len(credentials) == 2 else (None, credentials[0])
    if not username and not password:
        return ""
    # A user without a password takes any, and respool wants one.
    password = password or "nopass"
    return f"{quote(_text(username or ''), safe='')}:{quote(_text(password), safe='')}@"


def _text(value):
    return value.decode() if isinstance(value, bytes) else str(value)


def _tls_of(kwargs, options):
    """Whether there is TLS. Its options are added to those of respool."""
    given = {name: value for name, value in kwargs.items() if name.startswith("ssl_")}
    if not kwargs.get("ssl"):
        return False
    for name, value in given.items():
        if name not in OF_TLS and value not in UNSET:
            raise ValueError(f"{name}: respool has no such option; see docs/clients/python.md")
    if given.get("ssl_ca_certs"):
        options["server-tls-ca"] = str(given["ssl_ca_certs"])
    if given.get("ssl_certfile"):
        options["server-tls-cert"] = str(given["ssl_certfile"])
        options["server-tls-key"] = str(given.get("ssl_keyfile") or given["ssl_certfile"])
    required = given.get("ssl_cert_reqs", "required")
    is_checked = str(getattr(required, "name", required)).lower() not in ("none", "cert_none")
    if not is_checked:
        options["server-tls-verify"] = "false"
    elif given.get("ssl_check_hostname") is False:
        raise ValueError(
            "ssl_check_hostname: respool checks the name with the certificate; "
            "give respool_options={'server-tls-name': ...}, or ssl_cert_reqs='none' to check nothing"
        )
    version = given.get("ssl_min_version")
    if version is not None and int(version) > 0x0303:
        raise ValueError("ssl_min_version: respool takes TLS 1.2 and 1.3")
    return True


def arguments_of_url(url, kwargs):
    """The arguments of a pool for a URL of redis-py or of respool. Those in the URL win."""
    scheme = url.partition("://")[0]
    if scheme in RESPOOL_SCHEMES:
        return {**kwargs, "respool_url": url}
    if scheme not in PYTHON_SCHEMES:
        schemes = ", ".join(f"{name}://" for name in PYTHON_SCHEMES + RESPOOL_SCHEMES)
        raise ValueError(f"Redis URL must specify one of the following schemes ({schemes})")
    named = redis.connection.parse_url(url)
    named.pop("connection_class", None)
    if scheme == "rediss":
        named["ssl"] = True
    return {**kwargs, **named}
