package interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Transactional producers. A message says itself what becomes of it: its property {@code local} is the state after the
 * local transaction, {@code checks} the states that checks give, one after the other, joined by blanks.
 */
final class Transactions {
    private static final int TIMEOUT_MS = 10_000;

    private final Handles handles;

    Transactions(Handles handles) {
        this.handles = handles;
    }

    void register(Map<String, Operation> operations) {
        operations.put("transaction.open", this::open);
        operations.put("transaction.send", this::send);
        operations.put("transaction.checked", this::checked);
    }

    private static final class Opened implements AutoCloseable, TransactionListener {
        final TransactionMQProducer client;
        private final List<MessageExt> checked = new ArrayList<>();
        private final Map<String, Integer> times = new HashMap<>();

        Opened(TransactionMQProducer client) {
            this.client = client;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.valueOf(message.getUserProperty("local"));
        }

        @Override
        public synchronized LocalTransactionState checkLocalTransaction(MessageExt message) {
            checked.add(message);
            String[] states = message.getUserProperty("checks").split(" ");
            int number = times.merge(message.getTransactionId(), 1, Integer::sum) - 1;
            return LocalTransactionState.valueOf(states[Math.min(number, states.length - 1)]);
        }

        synchronized List<MessageExt> checked() {
            return new ArrayList<>(checked);
        }

        @Override
        public void close() {
            client.shutdown();
        }
    }

    private Object open(JSONObject arguments) throws Exception {
        TransactionMQProducer producer =
            new TransactionMQProducer(arguments.getString("group"), Clients.hook(arguments));
        producer.setNamesrvAddr(arguments.getString("namesrv"));
        producer.setInstanceName(Clients.unique("transactions"));
        producer.setHeartbeatBrokerInterval(Clients.HEARTBEAT_MS);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        Opened opened = new Opened(producer);
        producer.setTransactionListener(opened);
        producer.start();
        return handles.add(opened);
    }

    private Object send(JSONObject arguments) throws Exception {
        List<Map<String, Object>> results = new ArrayList<>();
        for (JSONObject json : arguments.getList("messages", JSONObject.class)) {
            Message message = Messages.toSend(arguments.getString("topic"), json);
            TransactionSendResult sent = opened(arguments).client.sendMessageInTransaction(message, null);
            Map<String, Object> result = new TreeMap<>();
            result.put("status", sent.getSendStatus().name());
            result.put("msgId", sent.getMsgId());
            result.put("transactionId", sent.getTransactionId());
            result.put("queueId", sent.getMessageQueue().getQueueId());
            result.put("queueOffset", sent.getQueueOffset());
            results.add(result);
        }
        return results;
    }

    /** What this producer was asked about, in the order of the checks. */
    private Object checked(JSONObject arguments) {
        return Messages.received(opened(arguments).checked());
    }

    private Opened opened(JSONObject arguments) {
        return handles.get(arguments.getIntValue("handle"), Opened.class);
    }
}
