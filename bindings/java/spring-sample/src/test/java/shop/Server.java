package shop;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.function.BooleanSupplier;

/** A real server on a port of its own, and a plain connection to it. It ends with the tests. */
final class Server {
  private final int port;
  private final Path folder;
  private final Process process;
  private Socket socket;

  Server() {
    try {
      try (ServerSocket free = new ServerSocket(0)) {
        port = free.getLocalPort();
      }
      folder = Files.createTempDirectory("respool-shop");
      process =
          new ProcessBuilder(
                  "redis-server", "--port", "" + port, "--bind", "127.0.0.1", "--save", "",
                  "--dir", folder.toString())
              .redirectErrorStream(true)
              .redirectOutput(folder.resolve("log").toFile())
              .start();
    } catch (IOException e) {
      throw new IllegalStateException(e);
    }
    Runtime.getRuntime().addShutdownHook(new Thread(this::kill));
    await(this::connects);
  }

  String url(int database) {
    return "redis://127.0.0.1:" + port + "/" + database;
  }

  /** The reply of an inline command, as the server writes it. */
  synchronized String ask(String command) {
    try {
      socket.getOutputStream().write((command + "\r\n").getBytes(StandardCharsets.UTF_8));
      InputStream input = socket.getInputStream();
      String head = line(input);
      boolean hasBody = head.startsWith("$") && !head.equals("$-1");
      if (!hasBody) {
        return head;
      }
      byte[] body = input.readNBytes(Integer.parseInt(head.substring(1)) + 2);
      return new String(body, StandardCharsets.UTF_8);
    } catch (IOException e) {
      throw new IllegalStateException(e);
    }
  }

  void await(BooleanSupplier condition) {
    long end = System.nanoTime() + 20_000_000_000L;
    while (!condition.getAsBoolean()) {
      if (System.nanoTime() > end || !process.isAlive()) {
        throw new IllegalStateException("not within 20 seconds");
      }
      try {
        Thread.sleep(10);
      } catch (InterruptedException e) {
        throw new IllegalStateException(e);
      }
    }
  }

  void kill() {
    try {
      process.destroyForcibly().waitFor();
      Files.deleteIfExists(folder.resolve("log"));
      Files.deleteIfExists(folder);
    } catch (IOException | InterruptedException e) {
      throw new IllegalStateException(e);
    }
  }

  private boolean connects() {
    try {
      socket = new Socket("127.0.0.1", port);
      return true;
    } catch (IOException e) {
      return false;
    }
  }

  private static String line(InputStream input) throws IOException {
    ByteArrayOutputStream line = new ByteArrayOutputStream();
    for (int next = input.read(); next != '\n'; next = input.read()) {
      if (next < 0) {
        throw new IOException("the server has closed the connection");
      }
      line.write(next);
    }
    return line.toString(StandardCharsets.UTF_8).strip();
  }
}
