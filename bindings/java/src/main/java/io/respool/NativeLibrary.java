package io.respool;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.AtomicMoveNotSupportedException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermission;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.Locale;

/**
 * Loads the native library out of the jar. It is unpacked to a file that is named by its hash, once
 * for all programs of a user.
 */
final class NativeLibrary {
  /** A file to load in place of that of the jar. */
  private static final String FILE_PROPERTY = "respool.library";
  /** The folder to unpack to. */
  private static final String FOLDER_PROPERTY = "respool.library.folder";

  /** Null if the library is loaded. */
  private static final String PROBLEM = load();

  private NativeLibrary() {}

  /** Why there is no library, or null if there is one. */
  static String problem() {
    return PROBLEM;
  }

  private static String load() {
    try {
      String file = System.getProperty(FILE_PROPERTY);
      if (file != null) {
        loadOnce(Path.of(file).toAbsolutePath());
      } else {
        loadOfJar(platform());
      }
      return null;
    } catch (FileNotFoundException e) {
      return "it has no native library for " + e.getMessage();
    } catch (IOException e) {
      return "its native library cannot be unpacked: " + e;
    } catch (LinkageError | RuntimeException e) {
      // An IllegalCallerException says that the virtual machine denies native access.
      return "its native library cannot be loaded: " + e;
    }
  }

  private static void loadOfJar(String platform) throws IOException {
    Path lasting = folder();
    if (lasting != null) {
      loadOnce(unpack(platform, lasting));
      return;
    }
    Path folder = Files.createTempDirectory("respool");
    try {
      Path file = unpack(platform, folder);
      try {
        loadOnce(file);
      } finally {
        // The system keeps the content of a loaded file.
        Files.deleteIfExists(file);
      }
    } finally {
      Files.deleteIfExists(folder);
    }
  }

  /**
   * Loads a library. Java loads a file for one class loader alone, and a web server has one for
   * each program, so a second one loads a copy.
   */
  private static void loadOnce(Path file) throws IOException {
    try {
      System.load(file.toString());
    } catch (UnsatisfiedLinkError e) {
      if (!String.valueOf(e.getMessage()).contains("already loaded in another classloader")) {
        throw e;
      }
      Path folder = file.getParent();
      Path copy =
          Files.isWritable(folder)
              ? Files.createTempFile(folder, "librespool", ".so")
              : Files.createTempFile("librespool", ".so");
      try {
        Files.copy(file, copy, StandardCopyOption.REPLACE_EXISTING);
        System.load(copy.toString());
      } finally {
        Files.deleteIfExists(copy);
      }
    }
  }

  /** The folder of this system in the jar, such as linux-x86_64 or linux-musl-aarch64. */
  private static String platform() {
    String os = System.getProperty("os.name").toLowerCase(Locale.ROOT);
    String name = os.startsWith("mac") ? "macos" : os.startsWith("windows") ? "windows" : os;
    String arch = System.getProperty("os.arch");
    String cpu = arch.equals("amd64") ? "x86_64" : arch.equals("arm64") ? "aarch64" : arch;
    return name + (isMusl() ? "-musl-" : "-") + cpu;
  }

  /** Whether the C library of this process is musl. */
  private static boolean isMusl() {
    try {
      String maps = Files.readString(Path.of("/proc/self/maps"), StandardCharsets.ISO_8859_1);
      return maps.contains("ld-musl-");
    } catch (IOException e) {
      return false;
    }
  }

  private static Path unpack(String platform, Path folder) throws IOException {
    byte[] hash;
    try (InputStream library = resource(platform)) {
      hash = sha256(library);
    }
    Path file = folder.resolve("librespool-" + hex(hash) + ".so");
    if (!hasContent(file, hash)) {
      Path part = Files.createTempFile(folder, "part", ".so");
      try (InputStream library = resource(platform)) {
        Files.copy(library, part, StandardCopyOption.REPLACE_EXISTING);
        move(part, file);
      } finally {
        Files.deleteIfExists(part);
      }
    }
    return file;
  }

  private static InputStream resource(String platform) throws IOException {
    String name = "native/" + platform + "/" + System.mapLibraryName("respool");
    InputStream stream = NativeLibrary.class.getResourceAsStream(name);
    if (stream == null) {
      throw new FileNotFoundException(platform);
    }
    return stream;
  }

  /** Another program may move its file there at the same time. Both have the same content. */
  private static void move(Path part, Path file) throws IOException {
    try {
      Files.move(part, file, StandardCopyOption.ATOMIC_MOVE);
    } catch (AtomicMoveNotSupportedException e) {
      Files.move(part, file, StandardCopyOption.REPLACE_EXISTING);
    }
  }

  private static boolean hasContent(Path file, byte[] hash) throws IOException {
    if (!Files.isRegularFile(file, LinkOption.NOFOLLOW_LINKS)) {
      return false;
    }
    try (InputStream content = Files.newInputStream(file)) {
      return Arrays.equals(sha256(content), hash);
    }
  }

  /**
   * A folder that stays, and in which only this user can write. Null if there is none: the folder
   * for temporary files belongs to all, and a library of another user must not be loaded.
   */
  private static Path folder() throws IOException {
    String chosen = System.getProperty(FOLDER_PROPERTY);
    if (chosen != null) {
      return Files.createDirectories(Path.of(chosen));
    }
    Path temporary = Path.of(System.getProperty("java.io.tmpdir"));
    Path folder = temporary.resolve("respool-" + System.getProperty("user.name"));
    if (!Files.exists(folder, LinkOption.NOFOLLOW_LINKS)) {
      try {
        var permissions = PosixFilePermissions.fromString("rwx------");
        Files.createDirectory(folder, PosixFilePermissions.asFileAttribute(permissions));
      } catch (IOException e) {
        // Another program has made it meanwhile, or the next step says why there is none.
      }
    }
    return isOwn(folder) ? folder : null;
  }

  private static boolean isOwn(Path folder) throws IOException {
    if (!Files.isDirectory(folder, LinkOption.NOFOLLOW_LINKS)) {
      return false;
    }
    // The owner of a new file is this user.
    Path probe;
    try {
      probe = Files.createTempFile("respool", "probe");
    } catch (IOException e) {
      return false;
    }
    try {
      var owner = Files.getOwner(folder, LinkOption.NOFOLLOW_LINKS);
      var permissions = Files.getPosixFilePermissions(folder, LinkOption.NOFOLLOW_LINKS);
      return owner.equals(Files.getOwner(probe))
          && !permissions.contains(PosixFilePermission.GROUP_WRITE)
          && !permissions.contains(PosixFilePermission.OTHERS_WRITE);
    } finally {
      Files.deleteIfExists(probe);
    }
  }

  /** In pieces: the library may be larger than the heap. */
  private static byte[] sha256(InputStream content) throws IOException {
    try {
      MessageDigest digest = MessageDigest.getInstance("SHA-256");
      byte[] piece = new byte[64 << 10];
      for (int length = content.read(piece); length >= 0; length = content.read(piece)) {
        digest.update(piece, 0, length);
      }
      return digest.digest();
    } catch (NoSuchAlgorithmException e) {
      throw new AssertionError("each Java has SHA-256", e);
    }
  }

  private static String hex(byte[] hash) {
    StringBuilder text = new StringBuilder();
    for (byte one : hash) {
      text.append(Character.forDigit(one >> 4 & 15, 16)).append(Character.forDigit(one & 15, 16));
    }
    return text.toString();
  }
}
