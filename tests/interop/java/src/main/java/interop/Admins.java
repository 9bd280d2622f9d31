package interop;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.DefaultParser;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.body.QueueTimeSpan;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/** Questions and orders to name server and broker, by the admin client and by mqadmin itself. */
final class Admins {
    private static final long MODE_TIMEOUT_MS = 5_000;
    private static final Map<String, DefaultMQAdminExt> CLIENTS = new HashMap<>();

    void register(Map<String, Operation> operations) {
        operations.put("admin.createTopic", this::createTopic);
        operations.put("admin.topics", arguments -> client(arguments).fetchAllTopicList().getTopicList());
        operations.put("admin.progress", this::progress);
        operations.put("admin.queryKey", arguments -> Messages.received(client(arguments).queryMessage(
            arguments.getString("topic"), arguments.getString("key"), arguments.getIntValue("count"),
            arguments.getLongValue("beginMs"), arguments.getLongValue("endMs")).getMessageList()));
        operations.put("admin.queryId", arguments -> Messages.received(
            client(arguments).viewMessage(arguments.getString("topic"), arguments.getString("id"))));
        operations.put("admin.checkAgain", arguments -> client(arguments).resumeCheckHalfMessage(
            arguments.getString("topic"), arguments.getString("id")));
        operations.put("admin.minOffset", arguments -> client(arguments).minOffset(queue(arguments)));
        operations.put("admin.maxOffset", arguments -> client(arguments).maxOffset(queue(arguments)));
        operations.put("admin.earliestMs", arguments -> client(arguments).earliestMsgStoreTime(queue(arguments)));
        operations.put("admin.searchOffset", arguments ->
            client(arguments).searchOffset(queue(arguments), arguments.getLongValue("timestampMs")));
        operations.put("admin.clone", this::cloneOffsets);
        operations.put("admin.forbid", this::forbid);
        operations.put("admin.status", this::status);
        operations.put("admin.subscription", this::subscription);
        operations.put("admin.timeSpans", this::timeSpans);
        operations.put("admin.topicsOf", arguments ->
            client(arguments).queryTopicsByConsumer(arguments.getString("group")).getTopicList());
        operations.put("admin.requestMode", this::requestMode);
        operations.put("mqadmin", this::mqadmin);
        operations.put("mqadmin.all", Commands::runAll);
    }

    static synchronized DefaultMQAdminExt client(JSONObject arguments) throws MQClientException {
        String namesrv = arguments.getString("namesrv");
        String place = namesrv + " " + arguments.getString("accessKey");
        DefaultMQAdminExt client = CLIENTS.get(place);
        if (client == null) {
            client = new DefaultMQAdminExt(Clients.hook(arguments));
            client.setNamesrvAddr(namesrv);
            client.setInstanceName(Clients.unique("admin"));
            client.start();
            CLIENTS.put(place, client);
        }
        return client;
    }

    private Object createTopic(JSONObject arguments) throws Exception {
        int queues = arguments.getIntValue("queues");
        TopicConfig topic = new TopicConfig(arguments.getString("topic"), queues, queues);
        client(arguments).createAndUpdateTopicConfig(arguments.getString("broker"), topic);
        return true;
    }

    /** Where a group stands in each queue, sorted by topic and queue. */
    private Object progress(JSONObject arguments) throws Exception {
        List<Map<String, Object>> rows = new ArrayList<>();
        Map<MessageQueue, OffsetWrapper> table =
            client(arguments).examineConsumeStats(arguments.getString("group")).getOffsetTable();
        for (Map.Entry<MessageQueue, OffsetWrapper> entry : new TreeMap<>(table).entrySet()) {
            Map<String, Object> row = new TreeMap<>();
            row.put("topic", entry.getKey().getTopic());
            row.put("queueId", entry.getKey().getQueueId());
            row.put("brokerOffset", entry.getValue().getBrokerOffset());
            row.put("consumerOffset", entry.getValue().getConsumerOffset());
            rows.add(row);
        }
        return rows;
    }

    private Object cloneOffsets(JSONObject arguments) throws Exception {
        client(arguments).cloneGroupOffset(arguments.getString("group"), arguments.getString("to"),
            arguments.getString("topic"), arguments.getBooleanValue("offline"));
        return true;
    }

    /** Whether a group may read a topic, after it was forbidden or allowed. */
    private Object forbid(JSONObject arguments) throws Exception {
        return client(arguments).updateAndGetGroupReadForbidden(arguments.getString("broker"),
            arguments.getString("group"), arguments.getString("topic"), arguments.getBoolean("readable")).getReadable();
    }

    /** Has the consumers of a group pull or pop a topic. */
    private Object requestMode(JSONObject arguments) throws Exception {
        client(arguments).setMessageRequestMode(arguments.getString("broker"), arguments.getString("topic"),
            arguments.getString("group"), MessageRequestMode.valueOf(arguments.getString("mode")),
            arguments.getIntValue("share"), MODE_TIMEOUT_MS);
        return true;
    }

    /** Where the consumers of a group are, by queue. */
    private Object status(JSONObject arguments) throws Exception {
        Map<String, Long> offsets = new TreeMap<>();
        client(arguments).getConsumeStatus(arguments.getString("topic"), arguments.getString("group"), "").values()
            .forEach(queues -> queues.forEach((queue, offset) -> offsets.put(String.valueOf(queue.getQueueId()), offset)));
        return offsets;
    }

    private Object subscription(JSONObject arguments) throws Exception {
        return client(arguments).querySubscription(arguments.getString("group"), arguments.getString("topic"))
            .getSubString();
    }

    /** The times of each queue of a topic, sorted by queue: first, last, consumed, delay. */
    private Object timeSpans(JSONObject arguments) throws Exception {
        Map<Integer, List<Long>> spans = new TreeMap<>();
        for (QueueTimeSpan span : client(arguments).queryConsumeTimeSpan(
            arguments.getString("topic"), arguments.getString("group"))) {
            spans.put(span.getMessageQueue().getQueueId(), List.of(span.getMinTimeStamp(), span.getMaxTimeStamp(),
                span.getConsumeTimeStamp(), span.getDelayTime()));
        }
        return new ArrayList<>(spans.values());
    }

    /** The objects of mqadmin's commands, some of which are good for one run only. */
    private static final class Commands extends MQAdminStartup {
        private static final String ENDLESS = "clusterRT";
        private static final long BETWEEN_STARTS_MS = 25; // their client ids are the time
        private static final InheritableThreadLocal<PrintStream> OWN = new InheritableThreadLocal<>();

        static void forget() {
            SUB_COMMANDS.clear();
        }

        /** Runs commands at once, each of which ends with seconds of waiting, and gives what each prints. */
        static Object runAll(JSONObject arguments) throws Exception {
            forget();
            initCommand();
            PrintStream before = System.out;
            System.setOut(new PrintStream(new OutputStream() {
                @Override
                public void write(int one) {
                    (OWN.get() == null ? before : OWN.get()).write(one);
                }

                @Override
                public void write(byte[] bytes, int start, int count) {
                    (OWN.get() == null ? before : OWN.get()).write(bytes, start, count);
                }
            }, true, StandardCharsets.UTF_8));
            List<ByteArrayOutputStream> printed = new ArrayList<>();
            List<Thread> threads = new ArrayList<>();
            try {
                for (Object words : arguments.getJSONArray("commands")) {
                    List<String> command = ((JSONArray) words).toList(String.class);
                    ByteArrayOutputStream own = new ByteArrayOutputStream();
                    Thread thread = new Thread(() -> runOne(command, own, Clients.hook(arguments)));
                    printed.add(own);
                    threads.add(thread);
                    thread.start();
                    Thread.sleep(BETWEEN_STARTS_MS);
                }
                JSONArray commands = arguments.getJSONArray("commands");
                for (int i = 0; i < threads.size(); i++) {
                    List<String> words = commands.getJSONArray(i).toList(String.class);
                    if (words.get(0).equals(ENDLESS)) {
                        interrupt(threads.get(i), printed.get(i), words.contains("-p") ? 1 : 2);
                    }
                    threads.get(i).join();
                }
            } finally {
                System.setOut(before);
            }
            List<String> texts = new ArrayList<>();
            for (ByteArrayOutputStream own : printed) {
                texts.add(own.toString(StandardCharsets.UTF_8));
            }
            return texts;
        }

        /** Ends a command that goes on for ever when it has printed so many lines; it sleeps then. */
        private static void interrupt(Thread thread, ByteArrayOutputStream printed, int lines) throws Exception {
            while (thread.isAlive() && printed.toString(StandardCharsets.UTF_8).lines().count() < lines) {
                Thread.sleep(BETWEEN_STARTS_MS);
            }
            thread.interrupt();
        }

        /** Runs a command by an object of its own, as main0 does. */
        private static void runOne(List<String> words, ByteArrayOutputStream printed, RPCHook hook) {
            PrintStream own = new PrintStream(printed, true, StandardCharsets.UTF_8);
            OWN.set(own);
            try {
                SubCommand known = SUB_COMMANDS.stream().filter(
                    command -> command.commandName().equalsIgnoreCase(words.get(0))).findFirst().orElseThrow();
                SubCommand command = known.getClass().getDeclaredConstructor().newInstance();
                Options options = command.buildCommandlineOptions(ServerUtil.buildCommandlineOptions(new Options()));
                String[] rest = words.subList(1, words.size()).toArray(new String[0]);
                CommandLine line = new DefaultParser().parse(options, rest);
                System.setProperty(MixAll.NAMESRV_ADDR_PROPERTY, line.getOptionValue('n'));
                command.execute(line, options, hook);
            } catch (Exception e) {
                String cause = String.valueOf(e.getCause());
                if (cause.contains("has created already")) { // another one has begun in the same millisecond
                    runOne(words, printed, hook);
                    return;
                }
                e.printStackTrace();
            }
            own.flush();
        }
    }

    /**
     * Runs mqadmin with the given words and gives what it prints. Once more if it printed nothing but a timeout: its five
     * seconds are not enough where four test processes share two cores, and who never answers fails again.
     */
    private Object mqadmin(JSONObject arguments) {
        String[] words = arguments.getList("words", String.class).toArray(new String[0]);
        ByteArrayOutputStream complained = new ByteArrayOutputStream();
        String printed = runOnce(words, Clients.hook(arguments), complained);
        if (printed.isEmpty() && complained.toString(StandardCharsets.UTF_8).contains("RemotingTimeoutException")) {
            System.err.println("mqadmin " + String.join(" ", words) + " timed out: once more");
            printed = runOnce(words, Clients.hook(arguments), complained);
        }
        return printed;
    }

    private static String runOnce(String[] words, RPCHook hook, ByteArrayOutputStream complained) {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream before = System.out;
        PrintStream log = System.err;
        PrintStream out = new PrintStream(printed, true, StandardCharsets.UTF_8);
        PrintStream err = new PrintStream(complained, true, StandardCharsets.UTF_8);
        System.setOut(out);
        System.setErr(err);
        Commands.forget();
        try {
            MQAdminStartup.main0(words, hook);
        } finally {
            System.setOut(before);
            System.setErr(log);
        }
        out.flush();
        err.flush();
        log.write(complained.toByteArray(), 0, complained.size());
        return printed.toString(StandardCharsets.UTF_8);
    }

    private static MessageQueue queue(JSONObject arguments) {
        return new MessageQueue(arguments.getString("topic"), arguments.getString("broker"),
            arguments.getIntValue("queue"));
    }
}
