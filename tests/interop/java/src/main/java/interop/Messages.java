package interop;

import com.alibaba.fastjson2.JSONObject;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages and send results to and from JSON. Bodies travel as base64. */
final class Messages {
    private Messages() {
    }

    static Message toSend(String topic, JSONObject json) {
        byte[] body = Base64.getDecoder().decode(json.getString("body"));
        Message message = new Message(topic, json.getString("tags"), json.getString("keys"), body);
        message.setFlag(json.getIntValue("flag"));
        JSONObject properties = json.getJSONObject("properties");
        properties.forEach((name, value) -> message.putUserProperty(name, (String) value));
        if (json.getIntValue("delay") > 0) {
            message.setDelayTimeMs(json.getIntValue("delay"));
        }
        if (json.getIntValue("level") > 0) {
            message.setDelayTimeLevel(json.getIntValue("level"));
        }
        return message;
    }

    static Map<String, Object> sent(SendResult result) {
        Map<String, Object> json = new TreeMap<>();
        json.put("status", result.getSendStatus().name());
        json.put("msgId", result.getMsgId());
        json.put("offsetMsgId", result.getOffsetMsgId());
        json.put("queueId", result.getMessageQueue().getQueueId());
        json.put("queueOffset", result.getQueueOffset());
        json.put("recallHandle", result.getRecallHandle());
        return json;
    }

    static List<Map<String, Object>> received(List<MessageExt> messages) {
        return messages.stream().map(Messages::received).collect(Collectors.toList());
    }

    static Map<String, Object> received(MessageExt message) {
        Map<String, Object> json = fields(message);
        json.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        return json;
    }

    /** Every decoded field, with the body as its length and SHA-256. */
    static Map<String, Object> dumped(MessageExt message) throws NoSuchAlgorithmException {
        Map<String, Object> json = fields(message);
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(message.getBody());
        json.put("bodyLength", message.getBody().length);
        json.put("bodySha256", Base64.getEncoder().encodeToString(digest));
        return json;
    }

    private static Map<String, Object> fields(MessageExt message) {
        Map<String, Object> json = new TreeMap<>();
        json.put("topic", message.getTopic());
        json.put("queueId", message.getQueueId());
        json.put("queueOffset", message.getQueueOffset());
        json.put("physicalOffset", message.getCommitLogOffset());
        json.put("storeSize", message.getStoreSize());
        json.put("bodyCrc", message.getBodyCRC());
        json.put("flag", message.getFlag());
        json.put("sysFlag", message.getSysFlag());
        json.put("bornTimestamp", message.getBornTimestamp());
        json.put("bornHost", String.valueOf(message.getBornHost()));
        json.put("storeTimestamp", message.getStoreTimestamp());
        json.put("storeHost", String.valueOf(message.getStoreHost()));
        json.put("reconsumeTimes", message.getReconsumeTimes());
        json.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        json.put("msgId", message.getMsgId());
        json.put("offsetMsgId", offsetMsgId(message));
        json.put("properties", storedProperties(message));
        return json;
    }

    private static String offsetMsgId(MessageExt message) {
        return message instanceof MessageClientExt
            ? ((MessageClientExt) message).getOffsetMsgId() : message.getMsgId();
    }

    /** The properties without the two that the client itself adds to what it pulls. */
    private static Map<String, String> storedProperties(MessageExt message) {
        Map<String, String> properties = new TreeMap<>(message.getProperties());
        properties.remove(MessageConst.PROPERTY_MIN_OFFSET);
        properties.remove(MessageConst.PROPERTY_MAX_OFFSET);
        return properties;
    }
}
