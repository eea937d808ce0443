import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.JaasContext;

/** Reads a JAAS entry a line, in base64, as Kafka's clients do; says what it holds, or why it is refused. */
public class JaasJudge {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String text = new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8);
            try {
                AppConfigurationEntry entry = JaasContext
                    .loadClientContext(Map.of("sasl.jaas.config", new Password(text)))
                    .configurationEntries().get(0);
                StringBuilder said = new StringBuilder("ok " + encoded(entry.getLoginModuleName()));
                Map<String, Object> options = new TreeMap<>();
                for (Map.Entry<String, ?> option : entry.getOptions().entrySet()) {
                    options.put(String.valueOf(option.getKey()), option.getValue());
                }
                options.forEach((key, value) -> said.append(" " + encoded(key) + "=" + encoded((String) value)));
                System.out.println(said);
            } catch (RuntimeException e) {
                System.out.println("refused " + encoded(String.valueOf(e.getMessage())));
            }
        }
    }

    private static String encoded(String text) {
        return Base64.getUrlEncoder().withoutPadding().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
