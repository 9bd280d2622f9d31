package interop;

import com.alibaba.fastjson2.JSONObject;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.client.impl.consumer.RebalanceImpl;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/**
 * Push consumers that keep what they are given, in the order in which the listener was called. One may fail each
 * message so many times, or hold those that have a property until it is closed. Where brokers share out the queues,
 * they also say whether to pull or to pop.
 */
final class PushConsumers {
    /** How long a shutdown waits for listeners to return: else it commits without their messages. */
    private static final long AWAIT_LISTENERS_MS = 10_000;
    private static final int CALLBACK_THREADS = 16;

    /** How soon a consumer that keeps the order tries again what it failed to consume. */
    private static final long AGAIN_MS = 100;

    private static final String HELD = "held";

    private final Handles handles;

    PushConsumers(Handles handles) {
        this.handles = handles;
    }

    void register(Map<String, Operation> operations) {
        operations.put("push.open", this::open);
        operations.put("push.await", this::await);
        operations.put("push.stop", this::stop);
        operations.put("push.allocation", this::allocation);
        operations.put("push.popped", this::popped);
        operations.put("push.rebalance", arguments -> {
            rebalance(opened(arguments)).getmQClientFactory().rebalanceImmediately();
            return true;
        });
    }

    private static final class Opened implements AutoCloseable {
        final DefaultMQPushConsumer client;
        private final List<MessageExt> received = new ArrayList<>();
        private final int failures;
        private final CountDownLatch closed = new CountDownLatch(1);

        /** @param failures how often each message is failed */
        Opened(DefaultMQPushConsumer client, int failures) {
            this.client = client;
            this.failures = failures;
        }

        boolean fails(List<MessageExt> messages) {
            return messages.stream().anyMatch(message -> message.getReconsumeTimes() < failures);
        }

        /** Does not return before the end for messages that have the property: never, in a process that is killed. */
        void hold(List<MessageExt> messages) {
            if (messages.stream().anyMatch(message -> message.getProperty(HELD) != null)) {
                try {
                    closed.await();
                } catch (InterruptedException end) {
                    Thread.currentThread().interrupt();
                }
            }
        }

        synchronized void add(List<MessageExt> messages) {
            received.addAll(messages);
            notifyAll();
        }

        /** Waits until {@code count} messages are here or the time is over, and gives what is here. */
        synchronized List<MessageExt> await(int count, long timeoutMs) throws InterruptedException {
            long deadline = System.nanoTime() + timeoutMs * 1_000_000;
            while (received.size() < count) {
                long leftMs = (deadline - System.nanoTime()) / 1_000_000;
                if (leftMs <= 0) {
                    break;
                }
                wait(leftMs);
            }
            return new ArrayList<>(received);
        }

        @Override
        public void close() {
            closed.countDown();
            client.shutdown();
        }
    }

    private Object open(JSONObject arguments) throws Exception {
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(arguments.getString("group"), Clients.hook(arguments));
        consumer.setNamesrvAddr(arguments.getString("namesrv"));
        consumer.setInstanceName(Clients.unique("push"));
        if (arguments.containsKey("nameServerPollMs")) {
            consumer.setPollNameServerInterval(arguments.getIntValue("nameServerPollMs"));
        }
        consumer.setHeartbeatBrokerInterval(Clients.HEARTBEAT_MS);
        // Who asks the consumer for what it does (307) has one of these threads wait for an answer that
        // another one of them takes: with one for each of two cores, two who ask at once wait in vain.
        consumer.setClientCallbackExecutorThreads(CALLBACK_THREADS);
        consumer.setEnableTrace(arguments.getBooleanValue("trace"));
        consumer.setAwaitTerminationMillisWhenShutdown(AWAIT_LISTENERS_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMessageModel(
            arguments.getBooleanValue("broadcast") ? MessageModel.BROADCASTING : MessageModel.CLUSTERING);
        if (arguments.getBooleanValue("sql")) {
            MessageSelector selector = MessageSelector.bySql(arguments.getString("expression"));
            consumer.subscribe(arguments.getString("topic"), selector);
        } else {
            consumer.subscribe(arguments.getString("topic"), arguments.getString("expression"));
        }
        consumer.setMaxReconsumeTimes(arguments.getIntValue("maxReconsumeTimes"));
        if (arguments.containsKey("routesMs")) {
            consumer.setPollNameServerInterval(arguments.getIntValue("routesMs"));
        }
        if (arguments.containsKey("pauseMs")) {
            consumer.setPullBatchSize(1);
            consumer.setPullThresholdForQueue(1);
        }
        Opened opened = new Opened(consumer, arguments.getIntValue("failures"));
        if (arguments.getBooleanValue("shared")) {
            consumer.setClientRebalance(false);
            consumer.setPopInvisibleTime(arguments.getLongValue("invisibleMs"));
        }
        if (arguments.getBooleanValue("holds")) {
            holdMarked(opened);
        } else {
            listen(opened, arguments.getBooleanValue("orderly"), arguments.getIntValue("level"),
                arguments.getLongValue("pauseMs"));
        }
        comeAgainAfter(consumer, arguments.getIntValue("againS"));
        consumer.start();
        return handles.add(opened);
    }

    private static void holdMarked(Opened opened) {
        opened.client.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            opened.add(messages);
            opened.hold(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
    }

    /** Sets after how long what was popped and failed comes again, else ten seconds up to two hours; 0 changes nothing. */
    private static void comeAgainAfter(DefaultMQPushConsumer consumer, int seconds) throws ReflectiveOperationException {
        if (seconds > 0) {
            Field delays = DefaultMQPushConsumerImpl.class.getDeclaredField("popDelayLevel");
            delays.setAccessible(true);
            Arrays.fill((int[]) delays.get(consumer.getDefaultMQPushConsumerImpl()), seconds);
        }
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException end) {
            Thread.currentThread().interrupt();
        }
    }

    /**
     * @param level the delay level of what is failed, 0 for that which follows from the failures
     * @param pauseMs for how long a consumer that keeps the order rests with each message
     */
    private static void listen(Opened opened, boolean orderly, int level, long pauseMs) {
        if (orderly) {
            opened.client.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                opened.add(messages);
                pause(pauseMs);
                context.setSuspendCurrentQueueTimeMillis(AGAIN_MS);
                return opened.fails(messages)
                    ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            opened.client.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                opened.add(messages);
                context.setDelayLevelWhenNextConsume(level);
                return opened.fails(messages)
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
    }

    private Object await(JSONObject arguments) throws Exception {
        Opened opened = opened(arguments);
        return Messages.received(opened.await(arguments.getIntValue("count"), arguments.getLongValue("timeoutMs")));
    }

    /** Shuts the consumer down, and only then looks what it got. */
    private Object stop(JSONObject arguments) throws Exception {
        Opened opened = opened(arguments);
        handles.close(arguments.getIntValue("handle"));
        return Messages.received(opened.await(0, 0));
    }

    /** The ids of the queues of {@code topic} that this consumer pulls now. */
    private Object allocation(JSONObject arguments) {
        return queueIds(rebalance(opened(arguments)).getProcessQueueTable().keySet(), arguments);
    }

    /** The ids of the queues of {@code topic} that this consumer pops now; -1 are all of the broker. */
    private Object popped(JSONObject arguments) {
        return queueIds(rebalance(opened(arguments)).getPopProcessQueueTable().keySet(), arguments);
    }

    private static List<Integer> queueIds(Collection<MessageQueue> queues, JSONObject arguments) {
        String topic = arguments.getString("topic");
        return queues.stream().filter(queue -> queue.getTopic().equals(topic)).map(MessageQueue::getQueueId).sorted()
            .collect(Collectors.toList());
    }

    private static RebalanceImpl rebalance(Opened opened) {
        return opened.client.getDefaultMQPushConsumerImpl().getRebalanceImpl();
    }

    private Opened opened(JSONObject arguments) {
        return handles.get(arguments.getIntValue("handle"), Opened.class);
    }
}
