package interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.AckStatus;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.PopStatus;
import org.apache.rocketmq.client.impl.mqclient.DoNothingClientRemotingProcessor;
import org.apache.rocketmq.client.impl.mqclient.MQClientAPIExt;
import org.apache.rocketmq.common.constant.ConsumeInitMode;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ConsumerSendMsgBackRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.NotificationRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/** Single pops, acknowledgements and the like, by the class with which RocketMQ's proxy makes them. */
final class PopCalls {
    private static final long TIMEOUT_MS = 10_000;

    private final Handles handles;

    PopCalls(Handles handles) {
        this.handles = handles;
    }

    void register(Map<String, Operation> operations) {
        operations.put("calls.open", this::open);
        operations.put("calls.pop", this::pop);
        operations.put("calls.ack", this::ack);
        operations.put("calls.ackBatch", this::ackBatch);
        operations.put("calls.change", this::change);
        operations.put("calls.notify", this::notifies);
        operations.put("calls.giveUp", this::giveUp);
    }

    private record Opened(MQClientAPIExt client, String broker, String brokerName) implements AutoCloseable {
        @Override
        public void close() {
            client.shutdown();
        }
    }

    private Object open(JSONObject arguments) {
        ClientConfig config = new ClientConfig();
        config.setNamesrvAddr(arguments.getString("namesrv"));
        config.setInstanceName(Clients.unique("calls"));
        MQClientAPIExt client =
            new MQClientAPIExt(config, new NettyClientConfig(), new DoNothingClientRemotingProcessor(null),
                Clients.hook(arguments));
        client.start();
        return handles.add(new Opened(client, arguments.getString("broker"), arguments.getString("brokerName")));
    }

    private Object pop(JSONObject arguments) throws Exception {
        Opened opened = opened(arguments);
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(arguments.getString("group"));
        header.setTopic(arguments.getString("topic"));
        header.setQueueId(arguments.getIntValue("queue"));
        header.setMaxMsgNums(arguments.getIntValue("count"));
        header.setInvisibleTime(arguments.getLongValue("invisibleMs"));
        header.setPollTime(arguments.getLongValue("pollMs"));
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(ConsumeInitMode.MIN);
        header.setExpType(ExpressionType.TAG);
        header.setExp(arguments.getString("expression"));
        header.setOrder(arguments.getBooleanValue("order"));
        header.setAttemptId(arguments.getString("attempt"));
        PopResult result = opened.client.popMessageAsync(opened.broker, opened.brokerName, header,
            arguments.getLongValue("pollMs") + TIMEOUT_MS).get();
        Map<String, Object> json = new TreeMap<>();
        boolean found = result.getPopStatus() == PopStatus.FOUND;
        json.put("status", result.getPopStatus().name());
        json.put("popMs", result.getPopTime());
        json.put("invisibleMs", result.getInvisibleTime());
        json.put("left", result.getRestNum());
        json.put("messages", Messages.received(found ? result.getMsgFoundList() : List.of()));
        return json;
    }

    private Object ack(JSONObject arguments) throws Exception {
        String handle = arguments.getString("receipt");
        String[] parts = ExtraInfoUtil.split(handle);
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setConsumerGroup(arguments.getString("group"));
        header.setTopic(realTopic(arguments, parts));
        header.setQueueId(ExtraInfoUtil.getQueueId(parts));
        header.setExtraInfo(handle);
        header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
        Opened opened = opened(arguments);
        return opened.client.ackMessageAsync(opened.broker, header, TIMEOUT_MS).get().getStatus().name();
    }

    private Object ackBatch(JSONObject arguments) throws Exception {
        Opened opened = opened(arguments);
        return opened.client.batchAckMessageAsync(opened.broker, arguments.getString("topic"),
            arguments.getString("group"), arguments.getList("receipts", String.class), TIMEOUT_MS)
            .get().getStatus().name();
    }

    /** Changes the invisible time, and gives the new handle, or nothing. */
    private Object change(JSONObject arguments) throws Exception {
        String handle = arguments.getString("receipt");
        String[] parts = ExtraInfoUtil.split(handle);
        ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
        header.setConsumerGroup(arguments.getString("group"));
        header.setTopic(realTopic(arguments, parts));
        header.setQueueId(ExtraInfoUtil.getQueueId(parts));
        header.setExtraInfo(handle);
        header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
        header.setInvisibleTime(arguments.getLongValue("invisibleMs"));
        Opened opened = opened(arguments);
        AckResult result =
            opened.client.changeInvisibleTimeAsync(opened.broker, opened.brokerName, header, TIMEOUT_MS).get();
        return result.getStatus() == AckStatus.OK ? result.getExtraInfo() : "";
    }

    private Object notifies(JSONObject arguments) throws Exception {
        NotificationRequestHeader header = new NotificationRequestHeader();
        header.setConsumerGroup(arguments.getString("group"));
        header.setTopic(arguments.getString("topic"));
        header.setQueueId(arguments.getIntValue("queue"));
        header.setPollTime(arguments.getLongValue("pollMs"));
        header.setBornTime(System.currentTimeMillis());
        Opened opened = opened(arguments);
        return opened.client.notification(opened.broker, header, arguments.getLongValue("pollMs") + TIMEOUT_MS)
            .get(TIMEOUT_MS, TimeUnit.MILLISECONDS);
    }

    /** Sends a message back as a dead letter, as the proxy does with what fails too often; gives the code. */
    private Object giveUp(JSONObject arguments) throws Exception {
        ConsumerSendMsgBackRequestHeader header = new ConsumerSendMsgBackRequestHeader();
        header.setOffset(arguments.getLongValue("physicalOffset"));
        header.setGroup(arguments.getString("group"));
        header.setDelayLevel(-1);
        header.setOriginMsgId(arguments.getString("id"));
        header.setOriginTopic(realTopic(arguments, ExtraInfoUtil.split(arguments.getString("receipt"))));
        header.setMaxReconsumeTimes(0);
        Opened opened = opened(arguments);
        RemotingCommand answer = opened.client.sendMessageBackAsync(opened.broker, header, TIMEOUT_MS).get();
        return answer.getCode();
    }

    private static String realTopic(JSONObject arguments, String[] parts) {
        return ExtraInfoUtil.getRealTopic(parts, arguments.getString("topic"), arguments.getString("group"));
    }

    private Opened opened(JSONObject arguments) {
        return handles.get(arguments.getIntValue("handle"), Opened.class);
    }
}
