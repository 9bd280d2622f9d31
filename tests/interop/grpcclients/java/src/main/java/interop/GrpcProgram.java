package interop;

import java.io.BufferedReader;
import java.io.Closeable;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.OffsetOption;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.java.message.MessageViewImpl;
import org.apache.rocketmq.shaded.com.google.gson.Gson;
import org.apache.rocketmq.shaded.com.google.gson.JsonElement;
import org.apache.rocketmq.shaded.com.google.gson.JsonObject;

/** The official Java client of RocketMQ 5, as a program with the operations of tests/interop/grpcclient.py. */
public final class GrpcProgram {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Pattern CODE = Pattern.compile("response-code=(\\d+)");
    private static final int CLOSE_SECONDS = 2;
    /** A broker that has just started may be slow: after the default of 3 s, a producer would send again. */
    private static final Duration REQUEST_TIMEOUT = Duration.ofSeconds(60);

    private final Gson gson = new Gson();
    private final Map<String, Operation> operations = new HashMap<>();
    private final Map<Integer, Closeable> clients = new HashMap<>();
    private final Map<Integer, List<?>> noted = new HashMap<>();
    private final Map<String, MessageView> messages = new HashMap<>();
    private final ExecutorService closing = Executors.newCachedThreadPool();
    private int last;

    /** An operation on its arguments. */
    private interface Operation {
        Object run(JsonObject arguments) throws Exception;
    }

    private GrpcProgram() {
        operations.put("producer", this::producer);
        operations.put("send", this::send);
        operations.put("transact", this::transact);
        operations.put("recall", this::recall);
        operations.put("checked", this::noted);
        operations.put("push", this::push);
        operations.put("received", this::noted);
        operations.put("simple", this::simple);
        operations.put("receive", this::receive);
        operations.put("ack", this::ack);
        operations.put("change", this::change);
        operations.put("litePush", this::litePush);
        operations.put("subscribe", this::subscribe);
        operations.put("unsubscribe", this::unsubscribe);
        operations.put("subscribed", it -> client(it, LitePushConsumer.class).getLiteTopicSet());
        operations.put("close", this::close);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        GrpcProgram program = new GrpcProgram();
        program.serve(answers);
        program.closing.shutdown();
        program.closing.awaitTermination(CLOSE_SECONDS, TimeUnit.SECONDS);
        System.exit(0);
    }

    private void serve(PrintStream answers) throws IOException {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            answers.write((gson.toJson(answer(gson.fromJson(line, JsonObject.class))) + "\n")
                .getBytes(StandardCharsets.UTF_8));
            answers.flush();
        }
    }

    private Map<String, Object> answer(JsonObject request) {
        Map<String, Object> answer = new HashMap<>();
        try {
            answer.put("result",
                operations.get(request.get("op").getAsString()).run(request.getAsJsonObject("arguments")));
        } catch (Exception failure) {
            failure.printStackTrace();
            answer.put("error", Map.of("type", failure.getClass().getSimpleName(), "code", code(failure), "text",
                String.valueOf(failure.getMessage())));
        }
        return answer;
    }

    /** Finds the code of the proxy, which a failed start has as a cause. */
    private static int code(Throwable failure) {
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            Matcher found = CODE.matcher(String.valueOf(cause.getMessage()));
            if (found.find()) {
                return Integer.parseInt(found.group(1));
            }
        }
        return 0;
    }

    private int opened(Closeable client) {
        clients.put(++last, client);
        return last;
    }

    private <T> T client(JsonObject arguments, Class<T> type) {
        return type.cast(clients.get(arguments.get("handle").getAsInt()));
    }

    /** Copies what a client has noted, while it goes on. */
    private Object noted(JsonObject arguments) {
        List<?> list = noted.get(arguments.get("handle").getAsInt());
        synchronized (list) {
            return new ArrayList<>(list);
        }
    }

    private static ClientConfiguration configuration(JsonObject arguments) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(arguments.get("endpoints").getAsString())
            .setRequestTimeout(REQUEST_TIMEOUT)
            .enableSsl(arguments.get("tls").getAsBoolean());
        String user = arguments.get("user").getAsString();
        if (!user.isEmpty()) {
            builder.setCredentialProvider(
                new StaticSessionCredentialsProvider(user, arguments.get("password").getAsString()));
        }
        return builder.build();
    }

    private static Message message(JsonObject outgoing) {
        MessageBuilder builder = PROVIDER.newMessageBuilder()
            .setTopic(outgoing.get("topic").getAsString())
            .setBody(Base64.getDecoder().decode(outgoing.get("body").getAsString()));
        if (!outgoing.get("tag").getAsString().isEmpty()) {
            builder.setTag(outgoing.get("tag").getAsString());
        }
        List<String> keys = new ArrayList<>();
        outgoing.getAsJsonArray("keys").forEach(key -> keys.add(key.getAsString()));
        builder.setKeys(keys.toArray(new String[0]));
        outgoing.getAsJsonObject("properties").entrySet()
            .forEach(it -> builder.addProperty(it.getKey(), it.getValue().getAsString()));
        if (!outgoing.get("group").getAsString().isEmpty()) {
            builder.setMessageGroup(outgoing.get("group").getAsString());
        }
        if (!outgoing.get("lite").getAsString().isEmpty()) {
            builder.setLiteTopic(outgoing.get("lite").getAsString());
        }
        if (outgoing.get("deliverMs").getAsLong() != 0) {
            builder.setDeliveryTimestamp(outgoing.get("deliverMs").getAsLong());
        }
        return builder.build();
    }

    private static Map<String, Object> described(MessageView message) {
        Map<String, Object> json = new TreeMap<>();
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        json.put("id", message.getMessageId().toString());
        json.put("topic", message.getTopic());
        json.put("body", Base64.getEncoder().encodeToString(bytes));
        json.put("tag", message.getTag().orElse(""));
        json.put("keys", List.copyOf(message.getKeys()));
        json.put("properties", message.getProperties());
        json.put("group", message.getMessageGroup().orElse(""));
        json.put("lite", message.getLiteTopic().orElse(""));
        json.put("attempt", message.getDeliveryAttempt());
        json.put("corrupted", ((MessageViewImpl) message).isCorrupted());
        json.put("receivedMs", System.currentTimeMillis());
        return json;
    }

    private Object producer(JsonObject arguments) throws ClientException {
        List<String> topics = new ArrayList<>();
        arguments.getAsJsonArray("topics").forEach(topic -> topics.add(topic.getAsString()));
        List<String> checked = new ArrayList<>();
        int handle = opened(PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration(arguments))
            .setTopics(topics.toArray(new String[0]))
            .setTransactionChecker(message -> {
                synchronized (checked) {
                    checked.add(message.getMessageId().toString());
                }
                return TransactionResolution.valueOf(message.getProperties().getOrDefault("check", "COMMIT"));
            })
            .build());
        noted.put(handle, checked);
        return handle;
    }

    private Object send(JsonObject arguments) throws ClientException {
        List<Object> receipts = new ArrayList<>();
        for (JsonElement outgoing : arguments.getAsJsonArray("messages")) {
            receipts.add(receipt(client(arguments, Producer.class).send(message(outgoing.getAsJsonObject()))));
        }
        return receipts;
    }

    private static Map<String, String> receipt(SendReceipt receipt) {
        String recall = receipt.getRecallHandle();
        return Map.of("id", receipt.getMessageId().toString(), "recall", recall == null ? "" : recall);
    }

    private Object transact(JsonObject arguments) throws ClientException {
        Producer producer = client(arguments, Producer.class);
        Transaction transaction = producer.beginTransaction();
        SendReceipt receipt = producer.send(message(arguments.getAsJsonObject("message")), transaction);
        String decision = arguments.get("decision").getAsString();
        if (decision.equals("COMMIT")) {
            transaction.commit();
        } else if (decision.equals("ROLLBACK")) {
            transaction.rollback();
        }
        return receipt(receipt);
    }

    private Object recall(JsonObject arguments) throws ClientException {
        return client(arguments, Producer.class)
            .recallMessage(arguments.get("topic").getAsString(), arguments.get("recall").getAsString())
            .getMessageId().toString();
    }

    private static Map<String, FilterExpression> expressions(JsonObject arguments) {
        Map<String, FilterExpression> expressions = new HashMap<>();
        arguments.getAsJsonObject("topics").entrySet()
            .forEach(it -> expressions.put(it.getKey(), new FilterExpression(it.getValue().getAsString())));
        return expressions;
    }

    private Object push(JsonObject arguments) throws ClientException {
        List<Object> received = new ArrayList<>();
        int handle = opened(PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration(arguments))
            .setConsumerGroup(arguments.get("group").getAsString())
            .setSubscriptionExpressions(expressions(arguments))
            .setMessageListener(listener(received))
            .build());
        noted.put(handle, received);
        return handle;
    }

    private static MessageListener listener(List<Object> received) {
        Map<String, Integer> times = new ConcurrentHashMap<>();
        return message -> {
            synchronized (received) {
                received.add(described(message));
            }
            int count = times.merge(message.getMessageId().toString(), 1, Integer::sum);
            int failures = Integer.parseInt(message.getProperties().getOrDefault("failures", "0"));
            return count <= failures ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        };
    }

    private Object litePush(JsonObject arguments) throws ClientException {
        List<Object> received = new ArrayList<>();
        int handle = opened(PROVIDER.newLitePushConsumerBuilder()
            .setClientConfiguration(configuration(arguments))
            .setConsumerGroup(arguments.get("group").getAsString())
            .bindTopic(arguments.get("topic").getAsString())
            .setMessageListener(listener(received))
            .build());
        noted.put(handle, received);
        return handle;
    }

    private Object subscribe(JsonObject arguments) throws ClientException {
        int again = arguments.get("again").getAsInt();
        client(arguments, LitePushConsumer.class).subscribeLite(arguments.get("lite").getAsString(),
            again > 0 ? OffsetOption.ofTailN(again) : OffsetOption.LAST_OFFSET);
        return null;
    }

    private Object unsubscribe(JsonObject arguments) throws ClientException {
        client(arguments, LitePushConsumer.class).unsubscribeLite(arguments.get("lite").getAsString());
        return null;
    }

    private Object simple(JsonObject arguments) throws ClientException {
        return opened(PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration(arguments))
            .setConsumerGroup(arguments.get("group").getAsString())
            .setSubscriptionExpressions(expressions(arguments))
            .setAwaitDuration(Duration.ofMillis(arguments.get("waitMs").getAsLong()))
            .build());
    }

    private Object receive(JsonObject arguments) throws ClientException {
        List<Object> received = new ArrayList<>();
        Duration invisible = Duration.ofMillis(arguments.get("invisibleMs").getAsLong());
        for (MessageView message : client(arguments, SimpleConsumer.class)
            .receive(arguments.get("count").getAsInt(), invisible)) {
            messages.put(message.getMessageId().toString(), message);
            received.add(described(message));
        }
        return received;
    }

    private Object ack(JsonObject arguments) throws ClientException {
        client(arguments, SimpleConsumer.class).ack(messages.get(arguments.get("id").getAsString()));
        return null;
    }

    private Object change(JsonObject arguments) throws ClientException {
        client(arguments, SimpleConsumer.class).changeInvisibleDuration(
            messages.get(arguments.get("id").getAsString()),
            Duration.ofMillis(arguments.get("invisibleMs").getAsLong()));
        return null;
    }

    /** Closes in the background, which takes a client some seconds. */
    private Object close(JsonObject arguments) {
        Closeable client = clients.remove(arguments.get("handle").getAsInt());
        closing.submit(() -> {
            client.close();
            return null;
        });
        return null;
    }
}
