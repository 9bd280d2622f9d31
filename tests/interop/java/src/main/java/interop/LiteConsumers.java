package interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** The lite pull consumer: subscribes and rebalances like a push consumer, but is polled. */
final class LiteConsumers {
    private final Handles handles;

    LiteConsumers(Handles handles) {
        this.handles = handles;
    }

    void register(Map<String, Operation> operations) {
        operations.put("lite.open", this::open);
        operations.put("lite.poll",
            arguments -> Messages.received(client(arguments).poll(arguments.getLongValue("timeoutMs"))));
        operations.put("lite.commit", arguments -> {
            client(arguments).commit();
            return true;
        });
    }

    private record Opened(DefaultLitePullConsumer client) implements AutoCloseable {
        @Override
        public void close() {
            client.shutdown();
        }
    }

    private Object open(JSONObject arguments) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(arguments.getString("group"));
        consumer.setNamesrvAddr(arguments.getString("namesrv"));
        consumer.setInstanceName(Clients.unique("lite"));
        consumer.setHeartbeatBrokerInterval(Clients.HEARTBEAT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.subscribe(arguments.getString("topic"), arguments.getString("expression"));
        consumer.start();
        return handles.add(new Opened(consumer));
    }

    private DefaultLitePullConsumer client(JSONObject arguments) {
        return handles.get(arguments.getIntValue("handle"), Opened.class).client();
    }
}
