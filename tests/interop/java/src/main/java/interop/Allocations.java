package interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/** How the client's own classes divide queues among the clients of a group. */
final class Allocations {
    private static final String NEARBY = "MACHINE_ROOM_NEARBY-";

    void register(Map<String, Operation> operations) {
        operations.put("allocate", this::allocate);
    }

    /** The places in {@code queues} of what each client has. */
    private Object allocate(JSONObject arguments) {
        List<MessageQueue> queues = arguments.getList("queues", MessageQueue.class);
        List<String> clients = arguments.getList("clients", String.class);
        Set<String> rooms = Set.copyOf(arguments.getList("rooms", String.class));
        AllocateMessageQueueStrategy strategy = strategy(arguments.getString("strategy"), rooms, queues);
        List<List<Integer>> divided = new ArrayList<>();
        for (String client : clients) {
            List<Integer> places = new ArrayList<>();
            for (MessageQueue queue : strategy.allocate("group", client, queues, clients)) {
                places.add(queues.indexOf(queue));
            }
            divided.add(places);
        }
        return Map.of("name", strategy.getName(), "divided", divided);
    }

    private static AllocateMessageQueueStrategy strategy(String name, Set<String> rooms, List<MessageQueue> queues) {
        if (name.startsWith(NEARBY)) {
            return new AllocateMachineRoomNearby(
                strategy(name.substring(NEARBY.length()), rooms, queues), new RoomsInNames());
        }
        switch (name) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash();
            case "MACHINE_ROOM":
                AllocateMessageQueueByMachineRoom byRoom = new AllocateMessageQueueByMachineRoom();
                byRoom.setConsumeridcs(rooms);
                return byRoom;
            case "CONFIG":
                AllocateMessageQueueByConfig byConfig = new AllocateMessageQueueByConfig();
                byConfig.setMessageQueueList(queues);
                return byConfig;
            default:
                throw new IllegalArgumentException("no strategy " + name);
        }
    }

    /** What comes before the {@code @} in the name of a broker or a client is its room. */
    private static final class RoomsInNames implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return queue.getBrokerName().split("@")[0];
        }

        @Override
        public String consumerDeployIn(String client) {
            return client.split("@")[0];
        }
    }
}
