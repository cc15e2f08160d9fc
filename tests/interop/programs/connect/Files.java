import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.file.FileStreamSourceConnector;
import org.apache.kafka.connect.source.ExactlyOnceSupport;

/**
 * Kafka's connector for a file, with a task for each of several, which `files` names, separated by commas: before tasks
 * that are not alone begin anew, Kafka Connect fences those of old by Admin.fenceProducers.
 */
public final class Files extends FileStreamSourceConnector {
    private Map<String, String> told;

    @Override
    public void start(Map<String, String> told) {
        this.told = told;
        super.start(told);
    }

    @Override
    public List<Map<String, String>> taskConfigs(int most) {
        List<Map<String, String>> configs = new ArrayList<>();
        for (String file : told.get("files").split(",")) {
            Map<String, String> one = new HashMap<>(told);
            one.put("file", file);
            configs.add(one);
        }
        return configs;
    }

    @Override
    public ExactlyOnceSupport exactlyOnceSupport(Map<String, String> told) {
        return ExactlyOnceSupport.SUPPORTED;
    }
}
