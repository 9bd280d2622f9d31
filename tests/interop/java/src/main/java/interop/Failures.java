package interop;

import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;

/** Exceptions as JSON: the class, the response code where there is one (else -1), the text. */
final class Failures {
    private Failures() {
    }

    static Map<String, Object> describe(Throwable failure) {
        Map<String, Object> description = new TreeMap<>();
        description.put("type", failure.getClass().getSimpleName());
        description.put("code", code(failure));
        description.put("text", String.valueOf(failure.getMessage()));
        return description;
    }

    private static int code(Throwable failure) {
        if (failure instanceof MQBrokerException) {
            return ((MQBrokerException) failure).getResponseCode();
        }
        return failure instanceof MQClientException ? ((MQClientException) failure).getResponseCode() : -1;
    }
}
