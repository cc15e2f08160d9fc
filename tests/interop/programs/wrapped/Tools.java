import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command line tools one after the other in one JVM, which saves a second's start of each.
 *
 * Standard input has a call in each line, the name of a tool's class and its arguments with tabs between them. What
 * stands before the name, with a < in front, is the one line that the tool reads as its own standard input. For each call
 * there is one line on standard output: {"exit": 0, "output": "..."}, where the output is all that the tool has printed.
 */
public final class Tools {
    private Tools() {}

    /** Thrown where a tool would end its process. Some catch it and try to end with another status: the first counts. */
    private static final class Ended extends RuntimeException {
        Ended(int status) {
            super("exit " + status, null, false, false);
            if (endedWith == null) {
                endedWith = status;
            }
        }
    }

    private static Integer endedWith;

    public static void main(String[] args) throws Exception {
        Exit.setExitProcedure((status, message) -> { throw new Ended(status); });
        Exit.setHaltProcedure((status, message) -> { throw new Ended(status); });
        InputStream input = System.in;
        PrintStream output = System.out;
        PrintStream complaints = System.err;
        var calls = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String call = calls.readLine(); call != null; call = calls.readLine()) {
            var printed = new ByteArrayOutputStream();
            var capture = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(capture);
            System.setErr(capture);
            int exit = run(call.split("\t", -1));
            System.setIn(input);
            System.setOut(output);
            System.setErr(complaints);
            Lines.print("exit", exit, "output", printed.toString(StandardCharsets.UTF_8));
        }
    }

    /** The exit status of the tool. */
    private static int run(String[] call) throws ReflectiveOperationException {
        endedWith = null;
        int name = 0;
        if (call[0].startsWith("<")) {
            System.setIn(new ByteArrayInputStream((call[0].substring(1) + "\n").getBytes(StandardCharsets.UTF_8)));
            name = 1;
        }
        String[] args = Arrays.copyOfRange(call, name + 1, call.length);
        try {
            Class.forName(call[name]).getMethod("main", String[].class).invoke(null, (Object) args);
            return 0;
        } catch (InvocationTargetException failed) {
            if (endedWith != null) {
                return endedWith;
            }
            var trace = new StringWriter();
            failed.getCause().printStackTrace(new PrintWriter(trace));
            System.out.print(trace);
            return 1;
        }
    }
}
