import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;

/**
 * What Kafka's own Admin asks about security, quotas and features, of a broker that has the former switched off:
 * java GoldenSecurity.java BOOTSTRAP TOPIC.
 */
public class GoldenSecurity {
    public static void main(String[] args) throws Exception {
        Properties configs = new Properties();
        configs.put("bootstrap.servers", args[0]);
        configs.put("client.id", "golden");
        try (Admin admin = Admin.create(configs)) {
            refused(() -> admin.describeAcls(AclBindingFilter.ANY).values().get());
            AclBinding acl = new AclBinding(
                    new ResourcePattern(ResourceType.TOPIC, args[1], PatternType.LITERAL),
                    new AccessControlEntry("User:golden", "*", AclOperation.READ, AclPermissionType.ALLOW));
            refused(() -> admin.createAcls(List.of(acl)).all().get());
            refused(() -> admin.deleteAcls(List.of(acl.toFilter())).all().get());
            refused(() -> admin.createDelegationToken().delegationToken().get());
            refused(() -> admin.renewDelegationToken(new byte[] {1}).expiryTimestamp().get());
            refused(() -> admin.expireDelegationToken(new byte[] {1}).expiryTimestamp().get());
            refused(() -> admin.describeDelegationToken().delegationTokens().get());
            admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion(
                            "golden", new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), "secret")))
                    .all()
                    .get();
            refused(() -> admin.describeUserScramCredentials(List.of("nobody")).description("nobody").get());
            admin.describeUserScramCredentials().all().get();
            ClientQuotaEntity entity = new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, "golden"));
            ClientQuotaAlteration.Op op = new ClientQuotaAlteration.Op("producer_byte_rate", 1024.0);
            admin.alterClientQuotas(Set.of(new ClientQuotaAlteration(entity, List.of(op)))).all().get();
            while (admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().isEmpty()) {
                Thread.onSpinWait();
            }
            admin.describeFeatures().featureMetadata().get();
            FeatureUpdate update = new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE);
            refused(() -> admin.updateFeatures(Map.of("no.such.feature", update), new UpdateFeaturesOptions()).all().get());
        }
        configs.put("security.protocol", "SASL_PLAINTEXT");
        configs.put("sasl.mechanism", "PLAIN");
        configs.put(
                "sasl.jaas.config",
                "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"u\" password=\"p\";");
        try (Admin admin = Admin.create(configs)) {
            refused(() -> admin.describeCluster().clusterId().get());
        }
    }

    private static void refused(Callable<?> call) throws Exception {
        try {
            call.call();
        } catch (ExecutionException expected) {
            return;
        }
        throw new AssertionError("it was not refused");
    }
}
