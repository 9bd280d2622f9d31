import java.util.List;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
public class Hello { public static void main(String[] a) throws Exception {
var producer = new DefaultMQProducer("greeters");
producer.setNamesrvAddr("127.0.0.1:9876");
producer.start();
System.out.println(producer.send(new Message("greetings", "tag", "hello".getBytes())));
producer.shutdown();

var consumer = new DefaultMQPushConsumer("readers");
consumer.setNamesrvAddr("127.0.0.1:9876");
consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
consumer.subscribe("greetings", "*");
consumer.registerMessageListener((List<MessageExt> messages, ConsumeConcurrentlyContext context) -> {
    messages.forEach(message -> System.out.println(new String(message.getBody())));
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
});
consumer.start();

Thread.sleep(12000); System.exit(0);
}}