package io.respool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileSystems;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.json.JSONArray;
import org.json.JSONObject;
import org.json.JSONTokener;
import org.junit.jupiter.api.Test;

/**
 * The metadata for GraalVM's native images names all that the code looks up by a text. These tests
 * run on an ordinary Java.
 */
class MetadataTest {
  private static final String FILE =
      "/META-INF/native-image/io.respool/respool/reachability-metadata.json";
  private static final Path NATIVE_SIDE = Path.of("../../crates/ffi/src");

  private final JSONObject metadata = metadata();

  @Test
  void eachMemberExists() throws Exception {
    for (Object each : metadata.getJSONArray("reflection")) {
      JSONObject entry = (JSONObject) each;
      // Thread.isVirtual is younger than Java 17.
      boolean isYounger =
          entry.getString("type").equals("java.lang.Thread") && Runtime.version().feature() < 21;
      if (isYounger) {
        continue;
      }
      Class<?> type = Class.forName(entry.getString("type"));
      for (String method : names(entry, "methods")) {
        assertNotNull(type.getDeclaredMethod(method));
      }
      for (String field : names(entry, "fields")) {
        assertNotNull(type.getDeclaredField(field));
      }
    }
  }

  @Test
  void methodsThatNativeCodeLooksUpAreNamed() throws Exception {
    Set<String> accessible = new TreeSet<>();
    for (Object each : metadata.getJSONArray("reflection")) {
      JSONObject entry = (JSONObject) each;
      if (entry.optBoolean("jniAccessible")) {
        assertEquals(Native.class.getName(), entry.getString("type"));
        accessible.addAll(names(entry, "methods"));
      }
    }
    String code = text(NATIVE_SIDE, ".rs");
    assertEquals(accessible, found(code, "let name = c\"(\\w+)\""));
    // Each look-up has its name in such a line, and no class is looked up by its name.
    assertEquals(accessible.size(), count(code, "Get\\w*(Method|Field)ID\\)"));
    assertEquals(0, count(code, "FindClass\\)"));
  }

  @Test
  void membersThatJavaCodeLooksUpAreNamed() throws Exception {
    Set<String> named = new TreeSet<>();
    for (Object each : metadata.getJSONArray("reflection")) {
      JSONObject entry = (JSONObject) each;
      if (!entry.optBoolean("jniAccessible")) {
        named.addAll(names(entry, "methods"));
        named.addAll(names(entry, "fields"));
      }
    }
    String code = text(Path.of("src/main/java"), ".java");
    String lookUp = "(?:getDeclared|get|find)(?:Field|Method|Constructor|Virtual|Static|VarHandle)";
    assertEquals(named, found(code, lookUp + "\\([^\"()]*\"(\\w+)\""));
    assertEquals(named.size(), count(code, "[.]" + lookUp + "\\("));
    assertEquals(0, count(code, "Class[.]forName|loadClass\\("));
  }

  @Test
  void libraryIsAmongTheResources() {
    JSONArray resources = metadata.getJSONArray("resources");
    assertEquals(1, resources.length());
    String glob = resources.getJSONObject(0).getString("glob");
    String library = "io/respool/native/linux-x86_64/librespool.so";
    assertTrue(FileSystems.getDefault().getPathMatcher("glob:" + glob).matches(Path.of(library)));
  }

  private static JSONObject metadata() {
    try (InputStream file = MetadataTest.class.getResourceAsStream(FILE)) {
      return new JSONObject(new JSONTokener(file));
    } catch (IOException e) {
      throw new IllegalStateException(e);
    }
  }

  private static Set<String> names(JSONObject entry, String key) {
    Set<String> names = new TreeSet<>();
    if (entry.has(key)) {
      entry.getJSONArray(key).forEach(one -> names.add(((JSONObject) one).getString("name")));
    }
    return names;
  }

  private static String text(Path folder, String ending) throws IOException {
    StringBuilder text = new StringBuilder();
    try (Stream<Path> files = Files.walk(folder)) {
      for (Path file : files.filter(one -> one.toString().endsWith(ending)).toList()) {
        text.append(Files.readString(file, StandardCharsets.UTF_8));
      }
    }
    return text.toString();
  }

  private static Set<String> found(String text, String pattern) {
    Set<String> found = new TreeSet<>();
    Matcher matcher = Pattern.compile(pattern).matcher(text);
    while (matcher.find()) {
      found.add(matcher.group(1));
    }
    return found;
  }

  private static long count(String text, String pattern) {
    return Pattern.compile(pattern).matcher(text).results().count();
  }
}
