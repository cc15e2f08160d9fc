import java.util.Collection;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;

/** Facts on standard output, one JSON object a line, each line flushed at once. */
final class Lines {
    private Lines() {}

    /** Prints the object with these names and values, given in turn. */
    static synchronized void print(Object... namesAndValues) {
        Map<String, Object> line = new LinkedHashMap<>();
        for (int at = 0; at < namesAndValues.length; at += 2) {
            line.put((String) namesAndValues[at], namesAndValues[at + 1]);
        }
        System.out.println(json(line));
        System.out.flush();
    }

    /** The number by which a partition goes: see tests/interop/story/clients/base.py. */
    static int place(String topic, int partition) {
        int dot = topic.lastIndexOf('.');
        return dot < 0 ? partition : 1000 * Integer.parseInt(topic.substring(dot + 1)) + partition;
    }

    private static String json(Object value) {
        StringBuilder text = new StringBuilder();
        if (value instanceof Map<?, ?> object) {
            for (var entry : object.entrySet()) {
                text.append(text.isEmpty() ? "" : ",").append(quoted(entry.getKey().toString()));
                text.append(':').append(json(entry.getValue()));
            }
            return "{" + text + "}";
        }
        if (value instanceof Collection<?> array) {
            for (Iterator<?> items = array.iterator(); items.hasNext();) {
                text.append(json(items.next())).append(items.hasNext() ? "," : "");
            }
            return "[" + text + "]";
        }
        return value == null || value instanceof Number || value instanceof Boolean
                ? String.valueOf(value)
                : quoted(value.toString());
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char symbol : text.toCharArray()) {
            if (symbol == '"' || symbol == '\\') {
                quoted.append('\\').append(symbol);
            } else if (symbol < ' ') {
                quoted.append(String.format("\\u%04x", (int) symbol));
            } else {
                quoted.append(symbol);
            }
        }
        return quoted.append('"').toString();
    }
}
