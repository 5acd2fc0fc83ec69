"""A pytest plugin for redis-py's tests: each connection to a server uses TLS.

The suite makes many clients without its fixtures, so the plugin changes how a connection is made.
"""

import os
import ssl

from redis.connection import Connection, SSLConnection

context = ssl.create_default_context(cafile=os.environ["CONFORMANCE_CA"])
connect_plain = Connection._connect


def connect(self):
    sock = connect_plain(self)
    # A connection of the suite's own for TLS adds its layer itself.
    return sock if isinstance(self, SSLConnection) else context.wrap_socket(sock, server_hostname="localhost")


Connection._connect = connect
