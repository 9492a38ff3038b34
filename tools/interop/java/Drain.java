import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Drain NAMESRV TOPIC GROUP CONSUMERS: members of one group that consume until standard input ends.
 *
 * The lines `suspend` and `resume` on standard input hold the members back and let them go on, which
 * leaves messages on a broker that is about to die.
 */
public final class Drain {
    private Drain() {
    }

    public static void main(String[] args) throws Exception {
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        for (int n = 0; n < Integer.parseInt(args[3]); n++) {
            members.add(member(args[0], args[1], args[2], Integer.toString(n)));
        }
        Report.note("ready", "consuming");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            switch (line) {
                case "suspend" -> members.forEach(DefaultMQPushConsumer::suspend);
                case "resume" -> members.forEach(DefaultMQPushConsumer::resume);
                default -> throw new IllegalArgumentException(line);
            }
            Report.note("did", line);
        }
        members.forEach(DefaultMQPushConsumer::shutdown);
        Report.note("done", "consumed");
        System.exit(0);
    }

    private static DefaultMQPushConsumer member(String namesrv, String topic, String group, String name) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("drain-" + name);
        consumer.setPollNameServerInterval(2_000);
        consumer.setHeartbeatBrokerInterval(2_000);
        consumer.setPersistConsumerOffsetInterval(1_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(4);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                Report.consumed("drain", name, message);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }
}
