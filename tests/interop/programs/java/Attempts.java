import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** Tries admin calls and prints a line about each. */
final class Attempts {
    private static final Duration SOON = Duration.ofSeconds(30);

    /** What a call returned, or nothing where it failed. */
    <T> Optional<T> call(String name, Callable<T> call) {
        try {
            T result = call.call();
            Lines.print("call", name, "ok", true);
            return Optional.ofNullable(result);
        } catch (ExecutionException failed) {
            printFailure(name, failed.getCause());
        } catch (Exception failed) {
            printFailure(name, failed);
        }
        return Optional.empty();
    }

    /** Waits for what one broker has acknowledged and another may hear of a moment later. */
    static void soon(Callable<Boolean> fact, String otherwise) throws Exception {
        long deadlineNanos = System.nanoTime() + SOON.toNanos();
        while (!known(fact)) {
            check(System.nanoTime() < deadlineNanos, otherwise);
            Thread.sleep(20); // between two questions
        }
    }

    private static boolean known(Callable<Boolean> fact) throws Exception {
        try {
            return fact.call();
        } catch (ExecutionException failed) {
            if (failed.getCause() instanceof UnknownTopicOrPartitionException) {
                return false;
            }
            throw failed;
        }
    }

    static void check(boolean fact, String otherwise) {
        if (!fact) {
            throw new IllegalStateException(otherwise);
        }
    }

    private static void printFailure(String name, Throwable error) {
        boolean ours = error instanceof IllegalStateException;
        System.err.println(name + ": " + error);
        Lines.print("call", name, "ok", false, "error", ours ? error.getMessage() : error.getClass().getSimpleName());
    }
}
