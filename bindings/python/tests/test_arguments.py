"""The arguments of clients and pools. The first line of each test is its claim."""

import tempfile
import unittest

import redis
import respool
import respool.asyncio
from respool._core import core_of, protocol_of

from support import Server, WithServer, free_port, make_certificate


class Url(unittest.TestCase):
    """The arguments that respool gets; no server is asked."""

    def url_of(self, client):
        core = client.connection_pool.core
        return core.url, dict(core.options)

    def test_arguments_become_a_url(self):
        """The arguments of redis-py name the same server."""
        cases = [
            ({}, "redis://localhost:6379/0"),
            ({"host": "h", "port": "7", "db": 3}, "redis://h:7/3"),
            ({"host": "::1"}, "redis://[::1]:6379/0"),
            ({"password": "p@ss/:"}, "redis://:p%40ss%2F%3A@localhost:6379/0"),
            ({"username": "u", "password": "p"}, "redis://u:p@localhost:6379/0"),
            ({"username": "u"}, "redis://u:nopass@localhost:6379/0"),
            ({"unix_socket_path": "/run/a b", "db": 2}, "unix:///run/a%20b?db=2"),
            ({"ssl": True, "host": "h"}, "rediss://h:6379/0"),
            (
                {"credential_provider": redis.UsernamePasswordCredentialProvider("u", "p")},
                "redis://u:p@localhost:6379/0",
            ),
        ]
        for arguments, expected in cases:
            self.assertEqual(self.url_of(respool.Redis(**arguments))[0], expected)
            self.assertEqual(self.url_of(respool.asyncio.Redis(**arguments))[0], expected)
        for url, expected in [
            ("redis://u:p%40@h:7/3", "redis://u:p%40@h:7/3"),
            ("redis://h?db=5&protocol=2", "redis://h:6379/5"),
            ("unix:///run/s?db=1&password=p", "unix://:p@/run/s?db=1"),
            ("rediss://h", "rediss://h:6379/0"),
            ("redis-cluster://a:1,b:2", "redis-cluster://a:1,b:2"),
            ("redis-sentinel://a/main/0", "redis-sentinel://a/main/0"),
        ]:
            self.assertEqual(self.url_of(respool.Redis.from_url(url))[0], expected)
            self.assertEqual(self.url_of(respool.asyncio.Redis.from_url(url))[0], expected)

    def test_options_reach_respool(self):
        """Options of respool, TLS and the time to connect reach it. Options that are given win."""
        client = respool.Redis(
            ssl=True,
            ssl_cert_reqs="none",
            socket_connect_timeout=1.5,
            respool_options={"max_delay_us": 100, "fuse": False, "server-down-error": "tryagain"},
        )
        options = self.url_of(client)[1]
        self.assertEqual(options["server-tls-verify"], "false")
        self.assertEqual(options["connect-timeout-ms"], "1500")
        self.assertEqual(options["max-delay-us"], "100")
        self.assertEqual(options["fuse"], "false")
        self.assertEqual(options["server-down-error"], "tryagain")

    def test_wrong_arguments_are_told(self):
        """Unknown, wrong and contradicting arguments are errors that name the argument."""
        cases = [
            ({"hots": "h"}, TypeError, "hots"),
            ({"protocol": 4}, redis.ConnectionError, "protocol"),
            ({"respool_options": {"sesions-max": 10}}, ValueError, "sesions-max.*did you mean"),
            ({"respool_options": {"listen": ":1"}}, ValueError, "listen"),
            ({"respool_options": {"request-timeout-ms": "soon"}}, ValueError, "request-timeout-ms"),
            ({"ssl": True, "ssl_ca_data": "x"}, ValueError, "ssl_ca_data"),
            ({"ssl": True, "ssl_check_hostname": False}, ValueError, "server-tls-name"),
            ({"ssl": True, "unix_socket_path": "/s"}, ValueError, "ssl"),
            ({"ssl": True, "ssl_ca_certs": "/none"}, ValueError, "server-tls-ca"),
            ({"connection_pool": redis.ConnectionPool()}, TypeError, "connection_pool"),
            (
                {"password": "p", "credential_provider": redis.UsernamePasswordCredentialProvider("u", "p")},
                redis.DataError,
                "credential_provider",
            ),
        ]
        for arguments, kind, text in cases:
            with self.assertRaisesRegex(kind, text):
                respool.Redis(**arguments)
        for url, arguments, text in [
            ("http://h", {}, "redis-cluster://"),
            ("redis-cluster://h", {"password": "p"}, "password"),
            ("redis-cluster://h", {"ssl": True}, "ssl"),
            ("redis://h", {"hots": 1}, "hots"),
        ]:
            with self.assertRaisesRegex((ValueError, TypeError), text):
                respool.Redis.from_url(url, **arguments)
        with self.assertRaises(TypeError):
            redis.ConnectionPool(connection_class=respool.Connection, hots=1).get_connection()

    def test_equal_arguments_share_a_client(self):
        """Objects with the same URL, options and protocol share a client; others do not."""
        one = respool.Redis(port=1)
        self.assertIs(respool.asyncio.Redis(port=1).connection_pool.core, one.connection_pool.core)
        self.assertIs(respool.Redis(port=1, decode_responses=True).connection_pool.core, one.connection_pool.core)
        other_protocol = 5 - protocol_of({})
        for other in ({"port": 2}, {"port": 1, "db": 1}, {"port": 1, "protocol": other_protocol}):
            self.assertIsNot(respool.Redis(**other).connection_pool.core, one.connection_pool.core)
        self.assertIs(core_of({"port": 1}), one.connection_pool.core)


class Login(WithServer):
    def test_passwords_and_databases_are_used(self):
        """A password, a user and a database reach the server; a wrong password is redis-py's error."""
        admin = redis.Redis(port=self.server.port)
        admin.acl_setuser("me", enabled=True, passwords=["+p@ss"], commands=["+@all"], keys=["*"])
        admin.config_set("requirepass", "secret")
        self.addCleanup(lambda: redis.Redis(port=self.server.port, password="secret").config_set("requirepass", ""))
        admin.acl_setuser("open", enabled=True, nopass=True, commands=["+@all"], keys=["*"])
        for arguments in (
            {"password": "secret"},
            {"username": "me", "password": "p@ss", "db": 2},
            {"username": "open"},
        ):
            client = respool.Redis(port=self.server.port, **arguments)
            client.set("key", arguments.get("db", 0))
            self.assertEqual(client.pipeline().get("key").execute(), [client.get("key")])
            client.close()
        for client in (
            respool.Redis(port=self.server.port, password="wrong"),
            respool.Redis(port=self.server.port),
        ):
            for ask in (lambda: client.get("key"), lambda: client.pipeline().get("key").execute()):
                self.assertRaises(redis.AuthenticationError, ask)
            client.close()


class Tls(unittest.TestCase):
    def test_certificates_are_checked(self):
        """TLS works with the CA of the arguments, and not with another one."""
        folder = tempfile.TemporaryDirectory(prefix="respool-")
        self.addCleanup(folder.cleanup)
        ca, certificate, key = make_certificate(folder.name)
        port = free_port()
        files = ["--tls-ca-cert-file", ca, "--tls-cert-file", certificate, "--tls-key-file", key]
        server = Server("--tls-port", str(port), "--tls-auth-clients", "no", *files)
        self.addCleanup(server.close)
        for arguments in (
            {"ssl_ca_certs": ca},
            {"ssl_ca_certs": ca, "ssl_certfile": certificate, "ssl_keyfile": key},
            {"ssl_cert_reqs": "none"},
        ):
            client = respool.Redis(port=port, ssl=True, **arguments)
            self.assertTrue(client.set("key", "value"), arguments)
            self.assertEqual(client.pipeline().get("key").execute(), [b"value"])
            client.close()
            client = respool.Redis.from_url(f"rediss://localhost:{port}/0", **arguments)
            self.assertEqual(client.get("key"), b"value")
            client.close()
        client = respool.Redis(port=port, ssl=True, respool_options={"outage-hold-ms": 50})
        self.assertRaises(respool.NotSent, client.get, "key")
        client.close()


if __name__ == "__main__":
    unittest.main()
