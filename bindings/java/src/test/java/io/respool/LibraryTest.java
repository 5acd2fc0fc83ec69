package io.respool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import redis.clients.jedis.RedisClient;

/** The native library is found, unpacked once, or told to be absent. Each case has its own Java. */
@Timeout(60)
class LibraryTest {
  @TempDir Path folder;

  /** Writes a key by two clients. */
  public static final class Program {
    private Program() {}

    public static void main(String[] arguments) {
      for (int round = 0; round < 2; round++) {
        Respool.Options options = Respool.options().set("request-timeout-ms", "2s");
        try (RedisClient jedis = options.jedis(arguments[0])) {
          System.out.println(jedis.incr("rounds"));
        }
      }
      System.out.println("native: " + Respool.isSupported());
      try {
        Respool.open("redis-cluster://127.0.0.1:1").close();
        System.out.println("opened");
      } catch (UnsupportedOperationException e) {
        System.out.println(e.getMessage());
      }
    }
  }

  /** Opens a client where Jedis has the classes of version 6. */
  public static final class OldJedisProgram {
    private OldJedisProgram() {}

    public static void main(String[] arguments) throws Throwable {
      List<URL> urls = new ArrayList<>();
      for (String path : System.getProperty("java.class.path").split(File.pathSeparator)) {
        urls.add(Path.of(path).toUri().toURL());
      }
      ClassLoader parent = ClassLoader.getPlatformClassLoader();
      try (URLClassLoader loader =
          new URLClassLoader(urls.toArray(new URL[0]), parent) {
            @Override
            protected Class<?> findClass(String name) throws ClassNotFoundException {
              if (name.startsWith("redis.clients.jedis.builders.")
                  || name.startsWith("redis.clients.jedis.RedisClient")) {
                throw new ClassNotFoundException(name);
              }
              return super.findClass(name);
            }
          }) {
        Class<?> type = loader.loadClass("io.respool.Respool");
        Class<?> executor = loader.loadClass("redis.clients.jedis.executors.CommandExecutor");
        var lookup = MethodHandles.publicLookup();
        Object respool =
            lookup
                .findStatic(type, "open", MethodType.methodType(type, String.class))
                .invoke(arguments[0]);
        Object made =
            lookup.findVirtual(type, "executor", MethodType.methodType(executor)).invoke(respool);
        System.out.println(made.getClass().getSimpleName());
        lookup.findVirtual(type, "close", MethodType.methodType(void.class)).invoke(respool);
      }
    }
  }

  /** Opens a client in each of two class loaders, as two programs of one web server do. */
  public static final class TwoLoadersProgram {
    private TwoLoadersProgram() {}

    public static void main(String[] arguments) throws Throwable {
      List<URL> urls = new ArrayList<>();
      for (String path : System.getProperty("java.class.path").split(File.pathSeparator)) {
        urls.add(Path.of(path).toUri().toURL());
      }
      List<URLClassLoader> loaders = new ArrayList<>();
      for (int nth = 0; nth < 2; nth++) {
        ClassLoader parent = ClassLoader.getPlatformClassLoader();
        URLClassLoader loader = new URLClassLoader(urls.toArray(new URL[0]), parent);
        loaders.add(loader);
        Class<?> type = loader.loadClass("io.respool.Respool");
        Object respool = type.getMethod("open", String.class).invoke(null, arguments[0]);
        Object reply =
            type.getMethod("ask", String[].class).invoke(respool, (Object) new String[] {"PING"});
        byte[] bytes = (byte[]) ((java.util.concurrent.CompletableFuture<?>) reply).get();
        System.out.println(nth + " " + new String(bytes).trim());
        type.getMethod("close").invoke(respool);
      }
    }
  }

  private static String run(TestServer server, String... options) throws Exception {
    return run(Program.class, server, options);
  }

  private static String run(Class<?> program, TestServer server, String... options)
      throws Exception {
    List<String> command = new ArrayList<>();
    command.add(ProcessHandle.current().info().command().orElseThrow());
    command.addAll(List.of(options));
    command.addAll(List.of("-cp", System.getProperty("java.class.path")));
    command.addAll(List.of(program.getName(), server.url()));
    Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
    String output = new String(process.getInputStream().readAllBytes());
    assertEquals(0, process.waitFor(), output);
    return output;
  }

  private static int count(String text, String part) {
    return text.split(part, -1).length - 1;
  }

  @Test
  void libraryIsUnpackedOnce() throws Exception {
    try (TestServer server = new TestServer()) {
      String option = "-Drespool.library.folder=" + folder;
      assertTrue(run(server, option).contains("native: true"));
      Path file = onlyFile();
      assertTrue(file.getFileName().toString().matches("librespool-[0-9a-f]{64}\\.so"), "" + file);
      var time = Files.getLastModifiedTime(file);
      assertTrue(run(server, option).contains("native: true"));
      assertEquals(time, Files.getLastModifiedTime(onlyFile()));
      // A file with other content is not loaded.
      Files.writeString(file, "not a library");
      assertTrue(run(server, option).contains("native: true"));
    }
  }

  private Path onlyFile() throws Exception {
    try (var files = Files.list(folder)) {
      List<Path> all = files.toList();
      assertEquals(1, all.size(), all.toString());
      return all.get(0);
    }
  }

  /** The library is larger than a small heap. */
  @Test
  void smallHeapSuffices() throws Exception {
    try (TestServer server = new TestServer()) {
      String option = "-Drespool.library.folder=" + folder;
      assertTrue(run(server, option, "-Xmx24m").contains("native: true"));
    }
  }

  /** A folder that others may read is used. Into one that others may write, nothing is unpacked. */
  @Test
  void folderThatOthersMayWriteIsNotUsed() throws Exception {
    try (TestServer server = new TestServer()) {
      Path own = Files.createDirectory(folder.resolve("respool-" + System.getProperty("user.name")));
      String option = "-Djava.io.tmpdir=" + folder;
      Files.setPosixFilePermissions(own, PosixFilePermissions.fromString("rwxrwxrwx"));
      assertTrue(run(server, option).contains("native: true"));
      assertEquals(List.of(own), inFolder(folder));
      assertEquals(List.of(), inFolder(own));
      Files.setPosixFilePermissions(own, PosixFilePermissions.fromString("rwxr-xr-x"));
      assertTrue(run(server, option).contains("native: true"));
      assertEquals(1, inFolder(own).size());
    }
  }

  private static List<Path> inFolder(Path folder) throws Exception {
    try (var files = Files.list(folder)) {
      return files.filter(file -> !file.getFileName().toString().startsWith("hsperfdata")).toList();
    }
  }

  /** Java loads a file for one class loader alone. */
  @Test
  void eachClassLoaderHasALibrary() throws Exception {
    try (TestServer server = new TestServer()) {
      String option = "-Drespool.library.folder=" + folder;
      String output = run(TwoLoadersProgram.class, server, option);
      assertTrue(output.contains("0 +PONG") && output.contains("1 +PONG"), output);
      onlyFile();
    }
  }

  /** No class that Jedis 6 lacks is loaded for the parts that work with Jedis 6. */
  @Test
  void olderJedisSuffices() throws Exception {
    try (TestServer server = new TestServer()) {
      String output = run(OldJedisProgram.class, server);
      assertTrue(output.contains("RespoolExecutor"), output);
    }
  }

  /** Without a library the client is plain Jedis, and the log says so once. */
  @Test
  void withoutLibraryItIsPlainJedis() throws Exception {
    try (TestServer server = new TestServer()) {
      for (String option : new String[] {"-Dos.arch=mips", "-Drespool.library=/nowhere.so"}) {
        String output = run(server, option);
        assertEquals(1, count(output, "respool is plain Jedis here"), output);
        assertTrue(output.contains("; without effect: request-timeout-ms"), output);
        assertTrue(output.contains("native: false"), output);
        assertTrue(output.contains("respool cannot run here: its native library cannot be loaded")
            || output.contains("respool cannot run here: it has no native library for linux-mips"), output);
      }
    }
  }

  /** From Java 24 on, native access may be denied. */
  @Test
  void deniedNativeAccessIsPlainJedis() throws Exception {
    org.junit.jupiter.api.Assumptions.assumeTrue(Runtime.version().feature() >= 24);
    try (TestServer server = new TestServer()) {
      String output = run(server, "--illegal-native-access=deny");
      assertEquals(1, count(output, "respool is plain Jedis here"), output);
      assertTrue(output.contains("native: false"), output);
    }
  }
}
