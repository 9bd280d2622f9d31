package interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.topic.TopicValidator;

/** The classic pull consumer: the caller names queue and offset, and keeps the offsets itself. */
final class PullConsumers {
    private final Handles handles;

    PullConsumers(Handles handles) {
        this.handles = handles;
    }

    void register(Map<String, Operation> operations) {
        operations.put("pull.open", this::open);
        operations.put("pull.queues", this::queues);
        operations.put("pull.pull", this::pull);
        operations.put("pull.commit", this::commit);
        operations.put("pull.committed", arguments -> client(arguments).fetchConsumeOffset(queue(arguments), true));
    }

    private record Opened(DefaultMQPullConsumer client) implements AutoCloseable {
        @Override
        public void close() {
            client.shutdown();
        }
    }

    private Object open(JSONObject arguments) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(arguments.getString("group"));
        consumer.setNamesrvAddr(arguments.getString("namesrv"));
        consumer.setInstanceName(Clients.unique("pull"));
        consumer.start();
        return handles.add(new Opened(consumer));
    }

    private Object queues(JSONObject arguments) throws Exception {
        List<Integer> ids = new ArrayList<>();
        for (MessageQueue queue : client(arguments).fetchSubscribeMessageQueues(arguments.getString("topic"))) {
            ids.add(queue.getQueueId());
        }
        return ids;
    }

    private Object pull(JSONObject arguments) throws Exception {
        PullResult result = client(arguments).pull(queue(arguments), arguments.getString("expression"),
            arguments.getLongValue("offset"), arguments.getIntValue("count"));
        List<MessageExt> found = result.getMsgFoundList();
        Map<String, Object> json = new TreeMap<>();
        json.put("status", result.getPullStatus().name());
        json.put("nextOffset", result.getNextBeginOffset());
        json.put("minOffset", result.getMinOffset());
        json.put("maxOffset", result.getMaxOffset());
        json.put("messages", found == null ? List.of() : Messages.received(found));
        return json;
    }

    private Object commit(JSONObject arguments) throws Exception {
        client(arguments).getDefaultMQPullConsumerImpl().updateConsumeOffsetToBroker(
            queue(arguments), arguments.getLongValue("offset"), false);
        return true;
    }

    private MessageQueue queue(JSONObject arguments) throws Exception {
        if (arguments.getString("topic").startsWith(MixAll.LMQ_PREFIX)) {
            return lightQueue(arguments);
        }
        for (MessageQueue queue : client(arguments).fetchSubscribeMessageQueues(arguments.getString("topic"))) {
            if (queue.getQueueId() == arguments.getIntValue("queue")) {
                return queue;
            }
        }
        throw new IllegalArgumentException("the topic has no such queue: " + arguments);
    }

    /** Light queues have no route: the broker's address comes from that of a topic that every broker has. */
    private MessageQueue lightQueue(JSONObject arguments) {
        client(arguments).getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory()
            .updateTopicRouteInfoFromNameServer(TopicValidator.AUTO_CREATE_TOPIC_KEY_TOPIC);
        return new MessageQueue(
            arguments.getString("topic"), arguments.getString("broker"), arguments.getIntValue("queue"));
    }

    private DefaultMQPullConsumer client(JSONObject arguments) {
        return handles.get(arguments.getIntValue("handle"), Opened.class).client();
    }
}
