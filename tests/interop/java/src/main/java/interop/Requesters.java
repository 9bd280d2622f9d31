package interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.Base64;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Requests, and consumers that reply to them: with the body of the request behind a prefix. */
final class Requesters {
    private static final byte[] PREFIX = "re: ".getBytes();

    private final Handles handles;

    Requesters(Handles handles) {
        this.handles = handles;
    }

    void register(Map<String, Operation> operations) {
        operations.put("producer.request", this::request);
        operations.put("replier.open", this::open);
    }

    private record Replier(DefaultMQPushConsumer consumer, DefaultMQProducer producer) implements AutoCloseable {
        ConsumeConcurrentlyStatus answer(MessageExt request) {
            byte[] body = new byte[PREFIX.length + request.getBody().length];
            System.arraycopy(PREFIX, 0, body, 0, PREFIX.length);
            System.arraycopy(request.getBody(), 0, body, PREFIX.length, request.getBody().length);
            try {
                producer.send(MessageUtil.createReplyMessage(request, body));
            } catch (Exception failure) {
                failure.printStackTrace();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }

        @Override
        public void close() {
            consumer.shutdown();
            producer.shutdown();
        }
    }

    private Object open(JSONObject arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(arguments.getString("group") + "_replies", Clients.hook(arguments));
        producer.setNamesrvAddr(arguments.getString("namesrv"));
        producer.setInstanceName(Clients.unique("replies"));
        producer.setCompressMsgBodyOverHowmuch(arguments.getIntValue("compressOverBytes"));
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments.getString("group"), Clients.hook(arguments));
        consumer.setNamesrvAddr(arguments.getString("namesrv"));
        consumer.setInstanceName(Clients.unique("replier"));
        consumer.setHeartbeatBrokerInterval(Clients.HEARTBEAT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments.getString("topic"), "*");
        Replier replier = new Replier(consumer, producer);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(replier::answer);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return handles.add(replier);
    }

    private Object request(JSONObject arguments) throws Exception {
        DefaultMQProducer producer = handles.get(arguments.getIntValue("handle"), Producers.Opened.class).client();
        Message request = Messages.toSend(arguments.getString("topic"), arguments.getJSONObject("message"));
        Message reply = producer.request(request, arguments.getLongValue("timeoutMs"));
        return Base64.getEncoder().encodeToString(reply.getBody());
    }
}
