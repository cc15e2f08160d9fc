import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListStreamsGroupOffsetsSpec;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.quota.ClientQuotaFilter;

/** Admin calls about what a broker may do without, but not leave the client waiting for. */
final class BeyondCalls {
    private final Admin admin;
    private final String prefix;
    private final Attempts attempts;

    BeyondCalls(Admin admin, String prefix, Attempts attempts) {
        this.admin = admin;
        this.prefix = prefix;
        this.attempts = attempts;
    }

    void all() {
        var transaction = List.of(prefix + "-transaction");
        var share = prefix + "-share";
        var streams = prefix + "-streams";
        attempts.call("describeAcls", () -> admin.describeAcls(AclBindingFilter.ANY).values().get());
        attempts.call("describeClientQuotas", () ->
                admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get());
        attempts.call("describeUserScramCredentials", () -> admin.describeUserScramCredentials().all().get());
        attempts.call("describeDelegationToken", () -> admin.describeDelegationToken().delegationTokens().get());
        attempts.call("describeMetadataQuorum", () -> admin.describeMetadataQuorum().quorumInfo().get());
        attempts.call("listPartitionReassignments", () -> admin.listPartitionReassignments().reassignments().get());
        attempts.call("listClientMetricsResources", () -> admin.listClientMetricsResources().all().get());
        attempts.call("listTransactions", () -> admin.listTransactions().all().get());
        attempts.call("describeTransactions", () -> admin.describeTransactions(transaction).all().get());
        attempts.call("fenceProducers", () -> admin.fenceProducers(transaction).all().get());
        attempts.call("describeShareGroups", () -> admin.describeShareGroups(List.of(share)).all().get());
        attempts.call("listShareGroupOffsets", () ->
                admin.listShareGroupOffsets(Map.of(share, new ListShareGroupOffsetsSpec())).all().get());
        attempts.call("describeStreamsGroups", () -> admin.describeStreamsGroups(List.of(streams)).all().get());
        attempts.call("listStreamsGroupOffsets", () ->
                admin.listStreamsGroupOffsets(Map.of(streams, new ListStreamsGroupOffsetsSpec())).all().get());
    }
}
