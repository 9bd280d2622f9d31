package interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;

/** Sending in each way that the producer offers. A message with a {@code queue} goes to that queue. */
final class Producers {
    private static final int TIMEOUT_MS = 10_000;
    private static final MessageQueueSelector BY_INDEX = (queues, message, index) -> queues.get((Integer) index);

    private final Handles handles;

    Producers(Handles handles) {
        this.handles = handles;
    }

    void register(Map<String, Operation> operations) {
        operations.put("producer.open", this::open);
        operations.put("producer.sync", this::sendSync);
        operations.put("producer.async", this::sendAsync);
        operations.put("producer.oneway", this::sendOneway);
        operations.put("producer.batch", this::sendBatch);
        operations.put("producer.recall", this::recall);
    }

    record Opened(DefaultMQProducer client) implements AutoCloseable {
        @Override
        public void close() {
            client.shutdown();
        }
    }

    private Object open(JSONObject arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(arguments.getString("group"), Clients.hook(arguments));
        producer.setNamesrvAddr(arguments.getString("namesrv"));
        producer.setInstanceName(Clients.unique("producer"));
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setEnableTrace(arguments.getBooleanValue("trace"));
        producer.setCompressType(CompressionType.of(arguments.getString("compression")));
        producer.setCompressMsgBodyOverHowmuch(arguments.getIntValue("compressOverBytes"));
        producer.setMaxMessageSize(arguments.getIntValue("maxMessageBytes"));
        producer.setPollNameServerInterval(arguments.getIntValue("nameServerPollMs"));
        producer.start();
        return handles.add(new Opened(producer));
    }

    private Object sendSync(JSONObject arguments) throws Exception {
        DefaultMQProducer producer = producer(arguments);
        List<Map<String, Object>> results = new ArrayList<>();
        for (JSONObject json : messages(arguments)) {
            Message message = Messages.toSend(arguments.getString("topic"), json);
            Integer queue = json.getInteger("queue");
            results.add(Messages.sent(
                queue == null ? producer.send(message) : producer.send(message, BY_INDEX, queue)));
        }
        return results;
    }

    /** Starts every send before it waits for the first result; the results are in the order of the messages. */
    private Object sendAsync(JSONObject arguments) throws Exception {
        DefaultMQProducer producer = producer(arguments);
        List<CompletableFuture<SendResult>> pending = new ArrayList<>();
        for (JSONObject json : messages(arguments)) {
            CompletableFuture<SendResult> result = new CompletableFuture<>();
            producer.send(Messages.toSend(arguments.getString("topic"), json), completing(result));
            pending.add(result);
        }
        List<Map<String, Object>> results = new ArrayList<>();
        for (CompletableFuture<SendResult> result : pending) {
            results.add(Messages.sent(result.get(TIMEOUT_MS, TimeUnit.MILLISECONDS)));
        }
        return results;
    }

    private static SendCallback completing(CompletableFuture<SendResult> result) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult sendResult) {
                result.complete(sendResult);
            }

            @Override
            public void onException(Throwable failure) {
                result.completeExceptionally(failure);
            }
        };
    }

    private Object sendOneway(JSONObject arguments) throws Exception {
        DefaultMQProducer producer = producer(arguments);
        for (JSONObject json : messages(arguments)) {
            producer.sendOneway(Messages.toSend(arguments.getString("topic"), json));
        }
        return true;
    }

    private Object sendBatch(JSONObject arguments) throws Exception {
        List<Message> batch = new ArrayList<>();
        for (JSONObject json : messages(arguments)) {
            batch.add(Messages.toSend(arguments.getString("topic"), json));
        }
        return Messages.sent(producer(arguments).send(batch));
    }

    private Object recall(JSONObject arguments) throws Exception {
        return producer(arguments).recallMessage(arguments.getString("topic"), arguments.getString("recallHandle"));
    }

    private DefaultMQProducer producer(JSONObject arguments) {
        return handles.get(arguments.getIntValue("handle"), Opened.class).client();
    }

    private static List<JSONObject> messages(JSONObject arguments) {
        return arguments.getList("messages", JSONObject.class);
    }
}
