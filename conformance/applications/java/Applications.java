import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;

/** Applications in Java; the first argument says which one this process is. */
public class Applications {
    static final String HOST = System.getenv("REDIS_HOST");
    static final int PORT = HOST == null ? 0 : Integer.parseInt(System.getenv("REDIS_PORT"));
    static final String MASTER = System.getenv("REDIS_MASTER");
    /** Empty where the application knows its server by address. */
    static final List<String> SENTINELS =
            HOST != null ? List.of() : Arrays.asList(System.getenv("REDIS_SENTINELS").split(","));
    static volatile boolean stopped;

    public static void main(String[] args) throws Exception {
        start(Applications::listen);
        switch (args[0]) {
            case "redisson" -> RedissonApplication.run();
            case "spring-lettuce", "spring-jedis" -> SpringApplication.run(args[0].endsWith("jedis"));
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    interface Step {
        void run() throws Exception;
    }

    /** Does step with 1, 2, 3, ... until told to stop; it returns how often the server has executed the item. */
    interface Item {
        long run(int number) throws Exception;
    }

    static void each(String activity, int paceMs, Item step) {
        start(() -> {
            for (int number = 1; !stopped; number++) {
                try {
                    for (long times = step.run(number); times > 0; times--) {
                        tell(activity, "done", number);
                    }
                } catch (Exception error) {
                    tell(activity, "error", error);
                }
                Thread.sleep(paceMs);
            }
        });
    }

    /** Sends items, which another part of the application receives. */
    static void send(String activity, int paceMs, Item step) {
        each(activity, paceMs, number -> {
            step.run(number);
            tell(activity, "sent", number);
            return 0;
        });
    }

    /** Takes items as a consumer does: the step returns the number of one, or null. */
    static void take(String activity, Callable<Object> step) {
        start(() -> {
            while (true) {
                try {
                    Object number = step.call();
                    if (number != null) {
                        tell(activity, "done", number);
                    }
                } catch (Exception error) {
                    tell(activity, "error", error);
                    Thread.sleep(100);
                }
            }
        });
    }

    static synchronized void tell(String activity, String event, Object detail) {
        String text = detail instanceof Throwable error ? error + cause(error) : String.valueOf(detail);
        System.out.println(activity + " " + event + " " + text.replaceAll("\\s+", " "));
    }

    private static String cause(Throwable error) {
        return error.getCause() == null ? "" : ": " + error.getCause();
    }

    private static void start(Step step) {
        Thread thread = new Thread(() -> {
            try {
                step.run();
            } catch (Exception error) {
                error.printStackTrace();
                System.exit(1);
            }
        });
        thread.start();
    }

    /** A line on standard input stops the senders; its end stops the process. */
    private static void listen() throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        while (lines.readLine() != null) {
            stopped = true;
        }
        System.exit(0);
    }
}
