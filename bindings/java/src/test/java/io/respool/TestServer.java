package io.respool;

import java.io.IOException;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.concurrent.TimeUnit;

/** A real server on a port of its own. */
final class TestServer implements AutoCloseable {
  final int port;
  private final Path folder;
  private Process process;

  TestServer() throws Exception {
    try (ServerSocket socket = new ServerSocket(0)) {
      port = socket.getLocalPort();
    }
    folder = Files.createTempDirectory("respool-java");
    start();
  }

  void start() throws Exception {
    process =
        new ProcessBuilder(
                "redis-server", "--port", "" + port, "--bind", "127.0.0.1", "--save", "",
                "--proto-max-bulk-len", "64mb", "--dir", folder.toString())
            .redirectErrorStream(true)
            .redirectOutput(folder.resolve("log").toFile())
            .start();
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
    while (true) {
      try (Socket socket = new Socket("127.0.0.1", port)) {
        return;
      } catch (IOException e) {
        if (System.nanoTime() > end || !process.isAlive()) {
          throw new IllegalStateException(Files.readString(folder.resolve("log")), e);
        }
        Thread.sleep(10);
      }
    }
  }

  String url() {
    return "redis://127.0.0.1:" + port;
  }

  void kill() throws Exception {
    process.destroyForcibly().waitFor();
  }

  /** Has the server answer nothing until it goes on. */
  void freeze() throws Exception {
    signal("STOP");
  }

  void goOn() throws Exception {
    signal("CONT");
  }

  private void signal(String name) throws Exception {
    new ProcessBuilder("kill", "-" + name, "" + process.pid()).start().waitFor();
  }

  @Override
  public void close() throws Exception {
    kill();
    try (var files = Files.walk(folder)) {
      for (Path path : files.sorted(Comparator.reverseOrder()).toList()) {
        Files.delete(path);
      }
    }
  }
}
