"""Replaces redis-server for suites that start their own servers: a server, or a respool before one.

The suite ends its process with SIGKILL. So this program becomes the server by exec. Or it becomes
the respool, and the kernel ends the server with it.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time

PATIENCE_SECONDS = 20
PR_SET_PDEATHSIG = 1


def main():
    server = os.environ["CONFORMANCE_SERVER"]
    respool = os.environ["CONFORMANCE_RESPOOL"]
    args = sys.argv[1:]
    if not respool or "--port" not in args:
        # The direct side, or a question for the version.
        os.execv(server, [server, *args])
    if "--loadmodule" in args or "--tls-auth-clients-user" in args:
        sys.exit("the server has no such module, and respool no users by certificate")
    args, listener = listener_of(args)
    folder = os.path.join(os.environ["CONFORMANCE_FOLDER"], f"server-{os.getpid()}")
    os.mkdir(folder)
    path = os.path.join(folder, "server.sock")
    # If an option is given twice, the server takes the last one.
    args += ["--port", "0", "--unixsocket", path, "--dir", folder, *json.loads(os.environ["CONFORMANCE_SERVER_ARGS"])]
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    process = subprocess.Popen([server, *args], preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
    wait_for(path, process)
    with open(os.path.join(os.environ["CONFORMANCE_FOLDER"], f"respool-{os.getpid()}.log"), "wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    more = json.loads(os.environ["CONFORMANCE_RESPOOL_ARGS"])
    os.execv(respool, [respool, "serve", *listener, "--backend", f"unix://{path}", *more])


def listener_of(args):
    """The server's arguments without those of TLS; and the listener of respool in its place."""
    tls, left = {}, []
    words = iter(args)
    for word in words:
        if word.startswith("--tls-"):
            tls[word] = next(words)
        else:
            left.append(word)
    if not tls:
        port = left[left.index("--port") + 1]
        return left, ["--listen", f"127.0.0.1:{port}" if port != "0" else f"unix:{left[left.index('--unixsocket') + 1]}"]
    listener = ["--tls-listen", f"127.0.0.1:{tls['--tls-port']}"]
    listener += ["--tls-cert", tls["--tls-cert-file"], "--tls-key", tls["--tls-key-file"]]
    if tls.get("--tls-auth-clients") != "no":
        listener += ["--tls-ca", tls["--tls-ca-cert-file"], "--tls-client-auth", "required"]
    return left, listener


def wait_for(path, process):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(path)
                return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                sys.exit("the server did not start")
            time.sleep(0.005)


main()
