package interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.NoSuchAlgorithmException;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.constant.PermName;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.route.QueueData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Every message of every readable queue, as the pull consumer decodes it, one JSON object a line. */
final class Dumps {
    private static final int BATCH = 32;

    private final Handles handles;

    Dumps(Handles handles) {
        this.handles = handles;
    }

    void register(Map<String, Operation> operations) {
        operations.put("dump", this::dump);
    }

    private Object dump(JSONObject arguments) throws Exception {
        DefaultMQAdminExt admin = Admins.client(arguments);
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("interop_dump");
        consumer.setNamesrvAddr(arguments.getString("namesrv"));
        consumer.setInstanceName(Clients.unique("dump"));
        consumer.start();
        try (BufferedWriter out = Files.newBufferedWriter(Path.of(arguments.getString("path")))) {
            for (String topic : new TreeSet<>(admin.fetchAllTopicList().getTopicList())) {
                for (QueueData queues : admin.examineTopicRouteInfo(topic).getQueueDatas()) {
                    dump(topic, queues, consumer, out);
                }
            }
        } finally {
            handles.release(handles.add(consumer::shutdown)); // nobody waits for it: it has no offsets
        }
        return true;
    }

    private static void dump(String topic, QueueData queues, DefaultMQPullConsumer consumer, BufferedWriter out)
        throws Exception {
        if (PermName.isReadable(queues.getPerm())) {
            for (int id = 0; id < queues.getReadQueueNums(); id++) {
                dump(new MessageQueue(topic, queues.getBrokerName(), id), consumer, out);
            }
        }
    }

    private static void dump(MessageQueue queue, DefaultMQPullConsumer consumer, BufferedWriter out)
        throws Exception {
        long end = consumer.maxOffset(queue);
        for (long offset = consumer.minOffset(queue); offset < end; ) {
            PullResult result = consumer.pull(queue, "*", offset, BATCH);
            if (result.getPullStatus() != PullStatus.FOUND) {
                throw new IllegalStateException(queue + " at " + offset + " of " + end + ": " + result);
            }
            for (MessageExt message : result.getMsgFoundList()) {
                write(message, out);
            }
            offset = result.getNextBeginOffset();
        }
    }

    private static void write(MessageExt message, BufferedWriter out) throws IOException, NoSuchAlgorithmException {
        out.write(JSON.toJSONString(Messages.dumped(message), JSONWriter.Feature.WriteNulls));
        out.newLine();
    }
}
