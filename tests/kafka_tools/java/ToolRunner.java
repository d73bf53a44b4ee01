import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.common.utils.Exit;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.core.LogEvent;
import org.apache.logging.log4j.core.LoggerContext;
import org.apache.logging.log4j.core.appender.AbstractAppender;
import org.apache.logging.log4j.core.config.LoggerConfig;
import org.apache.logging.log4j.core.config.Property;

/**
 * Runs the main methods of Kafka's tools in one JVM, several at a time.
 *
 * A JVM of its own costs each tool a second; here it costs a few milliseconds. Every run has its own
 * standard input, output and error, which the threads that the tool starts inherit; errors that are
 * logged go to standard error. A tool that calls
 * Exit.exit ends its run and not the JVM. Its shutdown hooks run when it ends or is told to stop: they
 * are found by the thread group that they were made in. (Needs --add-opens java.base/java.lang.) The
 * tools keep counts in static fields, so every run loads their classes anew, from the jar that is
 * this program's argument and not on its class path.
 *
 * Requests and responses are JSON, one a line:
 *   {"id": 1, "op": "run", "class": "...", "args": [...], "stdin": "..."}   -> when the tool has ended:
 *       {"id": 1, "exit": 0, "out": "...", "err": "..."}
 *   {"id": 2, "op": "look", "run": 1, "start": 0}  -> {"id": 2, "lines": "...", "end": 0, "err": "..."},
 *       the whole lines of output so far from byte `start` on, up to `end`
 *   {"id": 3, "op": "stop", "run": 1}  -> {"id": 3}; what SIGTERM does: the shutdown hooks run
 */
public final class ToolRunner {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final InheritableThreadLocal<Run> CURRENT = new InheritableThreadLocal<>();
    private static final Map<Integer, Run> RUNS = new ConcurrentHashMap<>();
    private static final PrintStream RESPONSES = System.out;
    private static final PrintStream ERRORS = System.err;
    private static URL[] toolJar;

    /** Unwinds a tool's thread after it called Exit.exit. */
    private static final class Exited extends Error {
        Exited(int code) {
            super("exit " + code, null, false, false);
        }
    }

    /** One tool that runs or has run. */
    private static final class Run {
        final int id;
        final ByteArrayOutputStream out = new ByteArrayOutputStream();
        final ByteArrayOutputStream err = new ByteArrayOutputStream();
        final InputStream in;
        final ThreadGroup group;
        private Integer code;

        Run(int id, String input) {
            this.id = id;
            this.group = new ThreadGroup("tool-" + id);
            this.in = new ByteArrayInputStream(input.getBytes(StandardCharsets.UTF_8));
        }

        /** The first exit code counts: a tool may catch what unwinds it and exit once more. */
        synchronized void exit(int value) {
            if (code == null) code = value;
        }

        synchronized boolean hasExited() {
            return code != null;
        }

        synchronized int code() {
            return code == null ? 0 : code;
        }

        ObjectNode look(ObjectNode response, int start) {
            byte[] seen = out.toByteArray();
            int end = seen.length;
            while (end > start && seen[end - 1] != '\n') end--;
            return response.put("lines", new String(seen, start, end - start, StandardCharsets.UTF_8))
                .put("end", end)
                .put("err", err.toString(StandardCharsets.UTF_8));
        }

        ObjectNode output(ObjectNode response) {
            return response.put("out", out.toString(StandardCharsets.UTF_8))
                .put("err", err.toString(StandardCharsets.UTF_8));
        }
    }

    /** Writes to the run of the calling thread; the output of a tool that has exited is dropped. */
    private static final class RunOutput extends OutputStream {
        private final boolean isError;

        RunOutput(boolean isError) {
            this.isError = isError;
        }

        @Override
        public void write(int value) throws IOException {
            write(new byte[] {(byte) value}, 0, 1);
        }

        @Override
        public void write(byte[] data, int start, int length) throws IOException {
            Run run = CURRENT.get();
            if (run == null) ERRORS.write(data, start, length);
            else if (!run.hasExited()) (isError ? run.err : run.out).write(data, start, length);
        }
    }

    private static final class RunInput extends InputStream {
        @Override
        public int read() throws IOException {
            return CURRENT.get().in.read();
        }

        @Override
        public int read(byte[] data, int start, int length) throws IOException {
            return CURRENT.get().in.read(data, start, length);
        }
    }

    /** Prints the errors that Kafka's classes log in the thread that logs them, and so in its run. */
    private static final class RunAppender extends AbstractAppender {
        RunAppender() {
            super("run", null, null, false, Property.EMPTY_ARRAY);
        }

        @Override
        public void append(LogEvent event) {
            System.err.println(event.getLevel() + " " + event.getMessage().getFormattedMessage());
            if (event.getThrown() != null) event.getThrown().printStackTrace(System.err);
        }

        static void install() {
            LoggerContext context = LoggerContext.getContext(false);
            LoggerConfig root = context.getConfiguration().getRootLogger();
            List.copyOf(root.getAppenders().keySet()).forEach(root::removeAppender);
            RunAppender appender = new RunAppender();
            appender.start();
            root.addAppender(appender, Level.ERROR, null);
            root.setLevel(Level.ERROR);
            context.updateLoggers();
        }
    }

    public static void main(String[] arguments) throws IOException {
        toolJar = new URL[] {Path.of(arguments[0]).toUri().toURL()};
        System.setOut(new PrintStream(new RunOutput(false), true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(new RunOutput(true), true, StandardCharsets.UTF_8));
        BufferedReader requests =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.setIn(new RunInput());
        RunAppender.install();
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonNode request = JSON.readTree(line);
            int id = request.get("id").asInt();
            switch (request.get("op").asText()) {
                case "run" -> start(id, request);
                case "look" -> respond(runOf(request).look(response(id), request.get("start").asInt()));
                case "stop" -> stop(id, runOf(request));
                default -> throw new IllegalArgumentException(line);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static Run runOf(JsonNode request) {
        return RUNS.get(request.get("run").asInt());
    }

    private static void exit(int code) {
        CURRENT.get().exit(code);
        throw new Exited(code);
    }

    private static void start(int id, JsonNode request) {
        Run run = new Run(id, request.get("stdin").asText());
        RUNS.put(id, run);
        List<String> arguments = new ArrayList<>();
        request.get("args").forEach(each -> arguments.add(each.asText()));
        String tool = request.get("class").asText();
        begin(run, () -> run(run, tool, arguments.toArray(String[]::new)));
    }

    private static void run(Run run, String tool, String[] arguments) {
        CURRENT.set(run);
        URLClassLoader loader = new URLClassLoader(toolJar);
        Thread.currentThread().setContextClassLoader(loader);
        try {
            Method main = loader.loadClass(tool).getMethod("main", String[].class);
            main.invoke(null, (Object) arguments);
        } catch (InvocationTargetException wrapped) {
            fail(run, wrapped.getCause());
        } catch (ReflectiveOperationException | RuntimeException error) {
            fail(run, error);
        }
        runHooks(run);
        respond(run.output(response(run.id).put("exit", run.code())));
    }

    private static void fail(Run run, Throwable error) {
        if (run.hasExited()) return;
        System.err.print("Exception in thread \"main\" ");
        error.printStackTrace(System.err);
        run.exit(1);
    }

    /** As SIGTERM: the hooks run while the tool still does. Its run ends when its main does. */
    private static void stop(int id, Run run) {
        begin(run, () -> {
            CURRENT.set(run);
            runHooks(run);
            respond(response(id));
        });
    }

    private static void begin(Run run, Runnable task) {
        Thread thread = new Thread(run.group, task);
        thread.setDaemon(true);
        thread.start();
    }

    private static void runHooks(Run run) {
        try {
            List<Thread> due = new ArrayList<>();
            Class<?> hooks = Class.forName("java.lang.ApplicationShutdownHooks");
            synchronized (hooks) {
                Field field = hooks.getDeclaredField("hooks");
                field.setAccessible(true);
                for (Object each : ((Map<?, ?>) field.get(null)).keySet()) {
                    Thread hook = (Thread) each;
                    if (hook.getThreadGroup() == run.group) due.add(hook);
                }
                due.forEach(Runtime.getRuntime()::removeShutdownHook);
            }
            due.forEach(Thread::start);
            for (Thread hook : due) hook.join();
        } catch (ReflectiveOperationException | InterruptedException error) {
            fail(run, error);
        }
    }

    private static ObjectNode response(int id) {
        return JSON.createObjectNode().put("id", id);
    }

    private static synchronized void respond(ObjectNode response) {
        RESPONSES.println(response);
        RESPONSES.flush();
    }
}
